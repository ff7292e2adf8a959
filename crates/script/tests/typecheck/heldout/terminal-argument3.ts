// expect: argument 4
const start = await tools.execCommand({ cmd: "python3 -i", yieldTimeMs: 500 });
if (start.sessionId == null) return start.output;
const answer = await tools.writeStdin({ sessionId: "1", chars: "print(6*7)\n" });
return answer.output;
