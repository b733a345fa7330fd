// "Go to": a rank by number, a node by name, or all ranks of a state.

import { useState } from "preact/hooks";
import { find, type Found, type Places } from "../logic/finder";
import { nodeAddress, rankAddress } from "../logic/route";
import { plural } from "../logic/text";
import { only, selected } from "./selection";

export function Finder({ job, places }: { job: string; places: Places }) {
  const [text, setText] = useState("");
  const found = find(text, places);
  const go = (each: Found) => {
    if (each.kind === "rank") selected.value = each.rank;
    else if (each.kind === "state") only.value = each.state;
    else location.hash = address(job, each);
    if (each.kind === "rank" || each.kind === "state") setText("");
  };
  return (
    <form class="finder" role="search" onSubmit={(event) => (event.preventDefault(), found[0] && go(found[0]))}>
      <label>
        Go to{" "}
        <input
          type="search" value={text} placeholder="rank, node, hung" autocomplete="off" spellcheck={false} aria-keyshortcuts="/"
          onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => event.key === "Escape" && setText("")}
        />
      </label>
      {text.trim() !== "" && (
        <ul aria-label="Found">
          {found.map((each) => (
            <li key={words(each)}>
              <a href={address(job, each)} onClick={(event) => (event.preventDefault(), go(each))}>{words(each)}</a>
            </li>
          ))}
          {found.length === 0 && <li class="note">nothing by this name</li>}
        </ul>
      )}
    </form>
  );
}

function address(job: string, each: Found): string {
  if (each.kind === "node") return nodeAddress(each.host);
  return each.kind === "rank" ? rankAddress(job, each.rank) : location.hash;
}

function words(each: Found): string {
  if (each.kind === "rank") return `rank ${each.rank}${each.note && ` on ${each.note}`}`;
  if (each.kind === "state") return `${each.state}: ${plural(each.ranks, "rank")}`;
  return `node ${each.host}: ${plural(each.ranks, "rank")}`;
}
