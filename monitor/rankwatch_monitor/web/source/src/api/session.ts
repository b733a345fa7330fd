// A token is exchanged for a session at once: its cookie is out of reach of scripts, and no token is kept.

import { signal } from "@preact/signals";
import { tokenRejection } from "./connection";
import type { Allowed } from "./types";

/** What this browser may do, as far as known. */
export const session = signal<Allowed | null>(null);

/** Open a session. Returns the monitor's message if the token is rejected, else null. */
async function openSession(token: string): Promise<string | null> {
  const answer = await send("POST", "/session", JSON.stringify({ token }));
  const body = (await answer?.json().catch(() => ({}))) as Partial<Allowed> & { detail?: string } | undefined;
  if (!answer?.ok || body?.scope === undefined) return body?.detail ?? "the monitor does not answer";
  session.value = { scope: body.scope, name: body.name ?? "" };
  return null;
}

/** Open a session with the token of a form, its only field. Returns the same. */
export function submitToken(event: SubmitEvent): Promise<string | null> {
  event.preventDefault();
  const [token] = new FormData(event.currentTarget as HTMLFormElement).values();
  return openSession(String(token));
}

export async function endSession(): Promise<void> {
  await send("DELETE", "/session");
  session.value = null;
}

/** Read what the cookie allows. */
export async function readSession(): Promise<void> {
  const answer = await send("GET", "/session/grant");
  session.value = answer?.ok ? ((await answer.json()) as Allowed) : null;
}

/** Exchange ?token=... and remove it from the address bar, so that it does not end up in histories and screenshots. */
export async function takeTokenFromAddress(): Promise<void> {
  const query = new URLSearchParams(location.search);
  const given = query.get("token");
  if (given === null) return;
  query.delete("token");
  const rest = query.size > 0 ? `?${query}` : "";
  history.replaceState(null, "", location.pathname + rest + location.hash);
  tokenRejection.value = await openSession(given);
}

function send(method: string, path: string, body?: string): Promise<Response | undefined> {
  const content = body === undefined ? {} : { body, headers: { "Content-Type": "application/json" } };
  return fetch(`/api/v1${path}`, { method, ...content, signal: AbortSignal.timeout(15_000), cache: "no-store" }).catch(() => undefined);
}
