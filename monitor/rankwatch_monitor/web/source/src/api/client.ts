// Reading from the monitor, with its own words when something is wrong.

import { responding, markContact, tokenRefused, serverTime } from "./connection";
import { controlToken, token } from "./token";

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** Longer than any honest answer takes; without it a monitor that froze would look like a slow one for ever. */
const PATIENCE_MS = 15_000;

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const answer = await fetch(`/api/v1${path}`, {
    headers: bearer(token.value),
    signal: signal ? AbortSignal.any([signal, patience]) : patience,
    cache: "no-store",
  }).catch((problem: unknown) => {
    responding.value = false;
    throw problem;
  });
  // A proxy's error is not the monitor's word.
  responding.value = answer.ok || (answer.headers.get("content-type") ?? "").startsWith("application/problem+json");
  if (responding.value) markContact();
  serverTime(answer.headers.get("date"));
  if (answer.status === 401 || answer.status === 403) tokenRefused.value = true;
  if (!answer.ok) throw new Problem(answer.status, await detail(answer));
  const body = (await answer.json()) as T;
  tokenRefused.value = false;
  return body;
}

/** Order or change something, with the control token; the monitor's refusal is thrown in its own words. */
export async function order<T>(method: "PATCH" | "POST", path: string, body: unknown): Promise<T> {
  const answer = await fetch(`/api/v1${path}`, {
    method,
    headers: { ...bearer(controlToken.value ?? token.value), "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (!answer.ok) throw new Problem(answer.status, await detail(answer));
  return (await answer.json()) as T;
}

function bearer(value: string | null): Record<string, string> {
  return value === null ? {} : { Authorization: `Bearer ${value}` };
}

async function detail(answer: Response): Promise<string> {
  try {
    const problem = (await answer.json()) as { title?: string; detail?: string };
    return problem.detail ?? problem.title ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}

/** The address of an event stream; EventSource cannot send headers, so the token goes into the query. */
export function streamAddress(path: string): string {
  return `/api/v1${path}${token.value === null ? "" : `?token=${encodeURIComponent(token.value)}`}`;
}
