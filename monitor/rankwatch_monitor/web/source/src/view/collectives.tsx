// Progress of the ranks in their process groups, by the sequence numbers of collectives.

import { useState } from "preact/hooks";
import type { GroupProgress } from "../api/types";
import { count, plural, runs } from "../logic/text";

const FEW = 10;

export function Collectives({ rows }: { rows: readonly GroupProgress[] }) {
  const [all, showAll] = useState(false);
  if (rows.length === 0) return null;
  const visible = all ? rows : rows.slice(0, FEW);
  return (
    <section class="collectives">
      <h2>
        Collectives <small>by process group, the furthest ranks first</small>
      </h2>
      <div class="scroll" role="region" aria-label="Collectives" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Group</th>
              <th scope="col">Ranks</th>
              <th scope="col">Newest entered</th>
              <th scope="col" class="number">Number</th>
              <th scope="col" class="number">Completed</th>
            </tr>
          </thead>
          <tbody>
            {visible.map((each) => (
              <tr key={`${each.group} ${each.enqueued} ${each.completed} ${each.ranks[0]}`}>
                <th scope="row">{each.group}</th>
                <td title={runs(each.ranks, 100)}>{each.ranks.length > 8 ? plural(each.ranks.length, "rank") : runs(each.ranks)}</td>
                <td class="code">{each.operation}</td>
                <td class="number">{count(each.enqueued)}</td>
                <td class="number">{each.completed < 0 ? "none" : count(each.completed)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {visible.length < rows.length && (
        <button type="button" class="quiet" onClick={() => showAll(true)}>
          Show all {rows.length}
        </button>
      )}
    </section>
  );
}
