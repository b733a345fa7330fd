// The session that orders are made with: its form, and the text of a failed order, which the policy editor needs too.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Problem } from "../api/client";
import { endSession, readSession, session, submitToken } from "../api/session";

/** The monitor's message if it rejected the last order or token for lack of the scope, else null. */
const rejection = signal<string | null>(null);

/** The text to show for a failed order. */
export function refusal(problem: unknown): string {
  if (!(problem instanceof Problem)) return "The monitor does not answer. Check the state of the job before you repeat the order.";
  if (problem.status === 401 || problem.status === 403) {
    rejection.value = problem.message;
    return `Nothing was done: ${problem.message}.`;
  }
  return problem.message;
}

export function ControlTokenForm() {
  useEffect(() => void readSession(), []);
  const open = async (event: SubmitEvent) => {
    rejection.value = await submitToken(event);
  };
  const { scope, name } = session.value ?? { scope: "read", name: "" };
  if (scope === "control" && name === "none") return null;
  if (scope === "control" && rejection.value === null) {
    return (
      <p class="note">
        Orders from this browser are recorded with the token {name}.{" "}
        <button type="button" class="quiet" onClick={() => void endSession().then(() => location.reload())}>Log out</button>
      </p>
    );
  }
  return (
    <form class="token" onSubmit={(event) => void open(event)}>
      <label>
        Control token{" "}
        <input name="control" type="password" autocomplete="off" spellcheck={false} required aria-describedby="control-token" />
      </label>
      <button type="submit" class="go">Use it</button>
      <small id="control-token">
        {rejection.value === null ? "Required for orders and changes." : `Rejected by the monitor: ${rejection.value}.`} It is exchanged for a cookie, and not kept.
      </small>
    </form>
  );
}
