// A long error that many sentences of a section contain: in full where it stands first, a link to that place below.

const EXITED = /(exited with code \d+): (.+?)(?=; |[.…]?$)/;

/** A place of the page: its label and address stand where its error comes again. */
export interface Place {
  id: string;
  label: string;
  href: string;
}

/** The place of each error where it stands first. Sentences may truncate it: one that begins another is the same. */
export function firstPlaces(sentences: readonly (readonly [Place, string])[]): Map<string, Place> {
  const found = new Map<string, Place>();
  for (const [place, sentence] of sentences) {
    const error = EXITED.exec(sentence)?.[2];
    if (error !== undefined && known(error, found) === undefined) found.set(error, place);
  }
  return found;
}

/** A sentence around an error that stands in full at another place: "Rank 5 exited with code 1", and what follows it; null: it does not. */
export function around(id: string, sentence: string, first: ReadonlyMap<string, Place>): { before: string; place: Place; after: string } | null {
  const match = EXITED.exec(sentence);
  const place = match === null ? undefined : known(match[2]!, first);
  if (match === null || place === undefined || place.id === id) return null;
  return { before: sentence.slice(0, match.index) + match[1], place, after: sentence.slice(match.index + match[0].length).replace("…", "") };
}

function known(error: string, first: ReadonlyMap<string, Place>): Place | undefined {
  return [...first].find(([other]) => other.startsWith(error) || error.startsWith(other))?.[1];
}
