// expect: argument 5
await tools.updatePlan({
  plan: [
    { step: "read the code", status: "completed" },
    { step: "write the fix", status: "doing" },
    { step: "run the tests", status: "pending" },
  ],
});
return "planned";
