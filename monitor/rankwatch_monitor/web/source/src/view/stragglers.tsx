// Slow ranks with cause and cost.

import type { Performance, Straggler } from "../api/types";
import { asOf } from "../api/connection";
import { foundBy, score, slowIn } from "../logic/stragglers";
import { ago, clock, count, gpuTime, ofStep, wholePercent, words } from "../logic/text";
import { NodeLink } from "./placelinks";
import { selected } from "./selection";
import { Table, useFew } from "./table";

const FEW = 8;

export function Stragglers({ performance: { stragglers, open, ended } }: { performance: Performance }) {
  if (open + ended.length === 0) return null;
  return (
    <section class="stragglers" aria-labelledby="stragglers">
      <h2 id="stragglers">
        Stragglers <small>{open === 0 ? "none now" : `${count(open)} now, costliest first`}</small>
      </h2>
      {stragglers.length > 0 && <Rows name="Stragglers now, costliest first" rows={stragglers} total={open} />}
      {ended.length > 0 && (
        <details>
          <summary>Recently ended ({count(ended.length)})</summary>
          <Rows name="Stragglers that have ended" rows={ended} total={ended.length} over />
        </details>
      )}
    </section>
  );
}

interface Rows {
  name: string;
  rows: readonly Straggler[];
  total: number;
  over?: boolean;
}

function Rows({ name, rows, total, over = false }: Rows) {
  const [visible, more] = useFew(rows, FEW, rows.length === total ? "all" : "the first");
  const known = visible.some((each) => each.own != null);
  const scored = visible.some((each) => each.score != null);
  return (
    <>
      <Table name={name} heads={[
        ["Rank", "number"], "Node", "Slow in", known && ["It takes", "number", "Seconds of each step that it spends on this, and the median of its peers"],
        ["Others wait", "number"], ["Share of a step", "number"], scored && ["GPU score", "number"], ["Cost", "number"], "Since", over && "Ended", "Why",
      ]}>
        {visible.map((each) => (
          <tr key={each.id} aria-selected={selected.value === each.rank} onClick={() => (selected.value = each.rank)}>
            <th scope="row" class="number">{each.rank}</th>
            <td><NodeLink host={each.host} /></td>
            <td>{slowIn(each.cause)}{each.section && <small>section <span class="code">{each.section}</span></small>}</td>
            {known && <td class="number">{each.own == null ? "–" : <>{ofStep(each.own)}<small>its peers {ofStep(each.peers)}</small></>}</td>}
            <td class="number">{ofStep(each.lateness)}</td>
            <td class="number force">{wholePercent(each.share)}</td>
            {scored && <td class="number" title={foundBy(each)}>{score(each.score)}</td>}
            <td class="number">{gpuTime(3600 * each.cost_gpu_hours)}</td>
            <td>{clock(each.since, asOf.value)}{!over && <small>{ago(each.since, asOf.value).replace(/ .* ago/, " ago")}</small>}</td>
            {over && <td>{clock(each.ended, asOf.value)}</td>}
            <td class="why">
                {each.reason}
                {each.action !== "log" && <small>{words(each.action)}{each.action_reason && `: ${each.action_reason}`}</small>}
            </td>
          </tr>
        ))}
      </Table>
      {visible.length < total && (
        <p class="more">{count(visible.length)} of {count(total)} {more}</p>
      )}
    </>
  );
}
