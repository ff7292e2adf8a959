// expect: argument 3
await tools.updatePlan({
  steps: [
    { step: "read the code", status: "completed" },
    { step: "write the fix", status: "in_progress" },
    { step: "run the tests", status: "pending" },
  ],
});
return "planned";
