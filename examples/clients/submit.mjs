// Submit a job with nothing but a NATS client: one JSON request, answered by the job's number.
//
//   npm install @nats-io/transport-node
//   node submit.mjs job.json --key nightly-2026-02-01
//
// The keys of the JSON object are those of the job file. The same key twice is the same job.

import { readFile } from "node:fs/promises";
import { userInfo } from "node:os";
import { parseArgs } from "node:util";
import { connect, headers } from "@nats-io/transport-node";

const HELLO = { name: "hello", run: ["python3", "-c", "print('hello')"] };

async function submit(url, user, job, key) {
  const connection = await connect({ servers: url, timeout: 5_000, maxReconnectAttempts: 1 });
  try {
    const options = { timeout: 10_000 };
    if (key) {
      options.headers = headers();
      options.headers.set("Nats-Msg-Id", key);
    }
    const subject = `tiresias.v1.jobs.${user}.submit`;
    const answer = (await connection.request(subject, JSON.stringify(job), options)).json();
    if (answer.error) throw new Error(`not stored: ${answer.error.description}`);
    return answer.seq;
  } finally {
    await connection.close();
  }
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    nats: { type: "string", default: process.env.TIRESIAS_NATS ?? "nats://127.0.0.1:4222" },
    user: { type: "string", default: userInfo().username },
    key: { type: "string" },
  },
});
const job = positionals.length ? JSON.parse(await readFile(positionals[0], "utf8")) : HELLO;

try {
  console.log(await submit(values.nats, values.user, job, values.key));
} catch (error) {
  console.error(`cannot submit through ${values.nats}: ${error.message}`);
  process.exitCode = 1;
}
