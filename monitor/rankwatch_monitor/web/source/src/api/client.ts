// Requests to the monitor's API. Failures carry the monitor's own error message.

import { expectNoClock, responding, markContact, tokenRefused, tokenRejection, serverTime } from "./connection";

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** Request timeout, longer than any normal response takes: a frozen monitor must not look like a slow one. */
const TIMEOUT_MS = 15_000;

/**
 * Read from the API. `optional`: a refusal concerns this request alone, not the page. `unchanged`: the answer has an ETag, and
 * is not sent again while it is the same.
 */
export async function get<T>(path: string, signal?: AbortSignal, { optional = false, unchanged = false } = {}): Promise<T> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(`/api/v1${path}`, {
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    cache: unchanged ? "no-cache" : "no-store",
  }).catch((problem: unknown) => {
    responding.value = false;
    throw problem;
  });
  // An error page of a proxy does not mean that the monitor responds.
  responding.value = answer.ok || (answer.headers.get("content-type") ?? "").startsWith("application/problem+json");
  if (responding.value) markContact();
  serverTime(answer.headers.get("date"));
  if (!answer.ok) {
    const problem = new Problem(answer.status, await detail(answer));
    if (!optional && !signal?.aborted && (answer.status === 401 || answer.status === 403)) refused(problem);
    throw problem;
  }
  const body = (await answer.json()) as T;
  tokenRefused.value = false;
  return body;
}

/** 401: this browser has no session, of which the page says enough; 403: it has one that may not read. */
function refused({ status, message }: Problem): void {
  if (status === 403) tokenRejection.value ??= message;
  tokenRefused.value = true;
  expectNoClock();
}

/** Send an order or a change. Throws `Problem` with the monitor's message if it is rejected. */
export async function order<T>(method: "PATCH" | "POST", path: string, body: unknown): Promise<T> {
  const answer = await fetch(`/api/v1${path}`, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (!answer.ok) throw new Problem(answer.status, await detail(answer));
  return (await answer.json()) as T;
}

async function detail(answer: Response): Promise<string> {
  try {
    const problem = (await answer.json()) as { title?: string; detail?: string };
    return problem.detail ?? problem.title ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}
