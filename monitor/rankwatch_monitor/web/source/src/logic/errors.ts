// A long error that many sentences of a page contain: in full where it stands first, shortened below.

const EXITED = /(exited with code \d+): (.+?)(?=; |\.?$)/;

/** A place of the page and a sentence in it, in the order of the page. */
export type Placed = readonly [place: string, sentence: string];

/** The place of each error where it stands first. Sentences may truncate it: one that begins another is the same. */
export function firstPlaces(sentences: readonly Placed[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const [place, sentence] of sentences) {
    const error = EXITED.exec(sentence)?.[2];
    if (error !== undefined && known(error, found) === undefined) found.set(error, place);
  }
  return found;
}

/** The sentence as it stands at a place: "Rank 5 exited with code 1, same error" where its error stands in full above. */
export function shortened(place: string, sentence: string, first: ReadonlyMap<string, string>): string {
  const above = known(EXITED.exec(sentence)?.[2] ?? "", first);
  return above === undefined || above === place ? sentence : sentence.replace(EXITED, "$1, same error");
}

function known(error: string, first: ReadonlyMap<string, string>): string | undefined {
  return error === "" ? undefined : [...first].find(([other]) => other.startsWith(error) || error.startsWith(other))?.[1];
}
