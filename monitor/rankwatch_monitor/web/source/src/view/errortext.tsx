// A sentence whose error may stand in full elsewhere in the section.

import { around, type Place } from "../logic/errors";

interface Props {
  id: string;
  text: string;
  errors: ReadonlyMap<string, Place>;
  /** Of the sentence itself; absent: it is no link. */
  href?: string;
}

export function ErrorText({ id, text, errors, href }: Props) {
  const same = around(id, text, errors);
  const words = same?.before ?? text;
  return <>{href === undefined ? words : <a href={href}>{words}</a>}{same && <>, same error as <a href={same.place.href}>{same.place.label}</a>{same.after}</>}</>;
}
