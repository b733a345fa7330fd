// The frame of every view: top bar, connection state, announcements for screen readers, token form.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { submitToken } from "../api/session";
import { asOf, lastContact, now, responding, retryAt, stale, tokenRefused, tokenRejection } from "../api/connection";
import { retryNow } from "../live/stream";
import type { Stale } from "../logic/serverclock";
import { clock, wholeDuration } from "../logic/text";
import { narrow, Preferences } from "./preferences";

/** Read aloud by screen readers when it changes. */
export const announcement = signal("");

export function Shell({ crumbs, children }: { crumbs: ComponentChildren; children: ComponentChildren }) {
  const outdated = stale.value;
  const lost = outdated !== null;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the state of the job
      </a>
      <header class="bar">
        <a class="brand" href="#/">
          <Logo />
          Rankwatch
        </a>
        <nav aria-label="Where you are">{crumbs}</nav>
        <span class="grow" />
        <Pulse outdated={outdated} />
        {!narrow.value && <Preferences />}
      </header>
      <Connection />
      <main id="main" tabIndex={-1} class={lost ? "stale" : undefined}>
        {tokenRefused.value ? <TokenGate /> : children}
      </main>
      <footer class="foot">
        <a href="/manual/">Manual</a>
        <a href="/docs">API</a>
        {narrow.value && <Preferences />}
      </footer>
      <p class="unseen" role="status" aria-live="assertive">
        {announcement}
      </p>
    </>
  );
}

function Logo() {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" class="logo">
      <path d="M0 0h4v4H0zM6 0h4v4H6zM12 0h4v4h-4zM0 6h4v4H0zM12 6h4v4h-4zM0 12h4v4H0zM6 12h4v4H6zM12 12h4v4h-4z" />
      <path class="odd" d="m8 4.6 3.4 3.4L8 11.4 4.6 8z" />
    </svg>
  );
}

function Pulse({ outdated }: { outdated: Stale | null }) {
  if (tokenRefused.value) return null;
  const contact = lastContact.value;
  if (contact === null) return <span class="pulse">Connecting</span>;
  return (
    <span class={outdated ? "pulse lost" : "pulse"}>
      <i aria-hidden="true" />
      {outdated ? `Unknown since ${clock(outdated.since, now.value)}` : <><span>Live</span> <time aria-hidden="true">· {clock(asOf.value, asOf.value)}</time></>}
    </span>
  );
}

/** Stands before what was known when the monitor was last heard. */
export const Before = () => (stale.value === null ? null : <>Unknown since {clock(stale.value.since, now.value)}. Before: </>);

function Connection() {
  const outdated = stale.value;
  const never = lastContact.value === null && retryAt.value !== null && !tokenRefused.value && !responding.value;
  if (tokenRefused.value || (outdated === null && !never)) return null;
  const wait = Math.max(0, Math.ceil((retryAt.value ?? 0) - Date.now() / 1000));
  return (
    <div class="connection" role="alert">
      <p>
        <strong>{outdated === null ? "The monitor does not answer." : trouble(outdated)}</strong>{" "}
        {outdated !== null && <>The data shown is from {clock(outdated.since, now.value)}. </>}
        Training does not depend on the monitor.
      </p>
      {!outdated?.answering && <p class="retry">
        <span>{wait > 0 ? `Reconnecting in ${wait} s` : "Reconnecting"}</span>
        <button type="button" onClick={retryNow}>
          Reconnect now
        </button>
      </p>}
    </div>
  );
}

function trouble({ since, answering }: Stale): string {
  const silent = wholeDuration(now.value - since);
  return answering ? `The monitor answers, but has not evaluated the jobs for ${silent}.` : `No connection to the monitor for ${silent}.`;
}

function TokenGate() {
  const submit = async (event: SubmitEvent) => {
    const problem = await submitToken(event);
    if (problem === null) location.reload();
    else tokenRejection.value = problem;
  };
  return (
    <form class="gate" onSubmit={(event) => void submit(event)}>
      <h1>This monitor requires a token.</h1>
      <p>
        <code>rankwatch open</code> opens the page without one, on the machine of the monitor. Elsewhere, enter a token that may read or control: it is exchanged for a cookie, and not kept.
      </p>
      {tokenRejection.value !== null && <p class="refused" role="alert">Rejected by the monitor: {tokenRejection}.</p>}
      <label>
        Token
        <input name="token" type="password" autocomplete="off" spellcheck={false} required autofocus />
      </label>
      <button type="submit" class="go">Open the page</button>
    </form>
  );
}
