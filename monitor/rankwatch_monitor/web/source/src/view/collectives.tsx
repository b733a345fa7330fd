// Progress of the ranks in their process groups, by the sequence numbers of collectives.

import type { GroupProgress } from "../api/types";
import { count, plural, runs } from "../logic/text";
import { Table, useFew } from "./table";

const FEW = 10;

export function Collectives({ rows }: { rows: readonly GroupProgress[] }) {
  const [visible, more] = useFew(rows, FEW);
  if (rows.length === 0) return null;
  return (
    <section class="collectives">
      <h2>
        Collectives <small>by process group, the furthest ranks first</small>
      </h2>
      <Table name="Collectives" heads={["Group", "Ranks", "Newest entered", ["Number", "number"], ["Completed", "number"]]}>
        {visible.map((each) => (
          <tr key={`${each.group} ${each.enqueued} ${each.completed} ${each.ranks[0]}`}>
            <th scope="row">{each.group}</th>
            <td title={runs(each.ranks, 100)}>{each.ranks.length > 8 ? plural(each.ranks.length, "rank") : runs(each.ranks)}</td>
            <td class="code">{each.operation}</td>
            <td class="number">{count(each.enqueued)}</td>
            <td class="number">{each.completed < 0 ? "none" : count(each.completed)}</td>
          </tr>
        ))}
      </Table>
      {more}
    </section>
  );
}
