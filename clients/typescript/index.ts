// A client of the service: paths, bodies and answers have the types of its own description.
import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./schema";

export type Job = components["schemas"]["JobView"];
export type JobRequest = components["schemas"]["JobRequest"];
export type Task = components["schemas"]["TaskView"];
export type Problem = components["schemas"]["ProblemView"];

/** Calls to one service with one token: `client.GET("/v1/jobs/{job_id}", { params: ... })`. */
export function tilewright(baseUrl: string, token: string): Client<paths> {
  return createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
}
