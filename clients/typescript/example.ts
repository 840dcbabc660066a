// Type-checked with the client: a job of a model that was uploaded, and its tasks.
import { tilewright, type Task } from "./index";

export async function tune(url: string, token: string, model: string): Promise<Task[]> {
  const client = tilewright(url, token);
  const made = await client.POST("/v1/jobs", {
    body: { model, target: "host", seconds: 60 },
    headers: { "Idempotency-Key": crypto.randomUUID() },
  });
  if (made.error !== undefined) throw new Error(JSON.stringify(made.error));
  const path = { job_id: made.data.id };
  const tasks = await client.GET("/v1/jobs/{job_id}/tasks", { params: { path } });
  if (tasks.error !== undefined) throw new Error(JSON.stringify(tasks.error));
  return tasks.data;
}
