// The read token comes from the address, the control token from a form; both are kept in sessionStorage of this tab.

import { signal } from "@preact/signals";

const KEY = "rankwatch.token";

export const token = signal<string | null>(sessionStorage.getItem(KEY));

const CONTROL_KEY = "rankwatch.control";

export const controlToken = signal<string | null>(sessionStorage.getItem(CONTROL_KEY));

export function keepControlToken(value: string | null): void {
  if (value === null) sessionStorage.removeItem(CONTROL_KEY);
  else sessionStorage.setItem(CONTROL_KEY, value);
  controlToken.value = value;
}

export function keepToken(value: string): void {
  sessionStorage.setItem(KEY, value);
  token.value = value;
}

/** Move ?token=... from the address bar to sessionStorage, so that it does not end up in histories and screenshots. */
export function takeTokenFromAddress(): void {
  const query = new URLSearchParams(location.search);
  const given = query.get("token");
  if (given === null) return;
  keepToken(given);
  query.delete("token");
  const rest = query.size > 0 ? `?${query}` : "";
  history.replaceState(null, "", location.pathname + rest + location.hash);
}
