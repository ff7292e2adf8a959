// expect: ok
const start = await tools.execCommand({ cmd: "python3 -i", yieldTimeMs: 500 });
if (start.sessionId == null) return start.output;
const answer = await tools.writeStdin({ sessionId: start.sessionId, chars: "print(6*7)\n" });
return answer.output;
