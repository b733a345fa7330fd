// The control token: its form, and the text of a failed order. Orders and the policy editor both depend on it.

import { signal } from "@preact/signals";
import { Problem } from "../api/client";
import { controlToken, keepControlToken } from "../api/token";

/** The monitor's message if it rejected the last order for lack of a valid control token, else null. */
const rejection = signal<string | null>(null);

/** The text to show for a failed order. A missing or wrong token also reopens the form. */
export function refusal(problem: unknown): string {
  if (!(problem instanceof Problem)) return "The monitor does not answer. Check the state of the job before you repeat the order.";
  if (problem.status === 401 || problem.status === 403) {
    rejection.value = problem.message;
    return `Nothing was done: ${problem.message}.`;
  }
  return problem.message;
}

export function ControlTokenForm() {
  const keep = (event: SubmitEvent) => {
    event.preventDefault();
    const value = new FormData(event.currentTarget as HTMLFormElement).get("control");
    if (typeof value !== "string" || value === "") return;
    keepControlToken(value);
    rejection.value = null;
  };
  if (controlToken.value !== null && rejection.value === null) {
    return (
      <p class="note">
        Orders from this tab carry the control token you entered.{" "}
        <button type="button" class="quiet" onClick={() => keepControlToken(null)}>Forget it</button>
      </p>
    );
  }
  return (
    <form class="token" onSubmit={keep}>
      <label>
        Control token{" "}
        <input name="control" type="password" autocomplete="off" spellcheck={false} required aria-describedby="control-token" />
      </label>
      <button type="submit">Use it</button>
      <small id="control-token">
        {rejection.value === null ? "Required if the monitor was started with tokens." : `Rejected by the monitor: ${rejection.value}.`} It is kept in this tab only.
      </small>
    </form>
  );
}
