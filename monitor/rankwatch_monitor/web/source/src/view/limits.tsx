// All limits: configured, learned and loaded values, the one in force and its source.

import type { Timeout } from "../api/types";
import { columns, limited, ordered, origin } from "../logic/limits";
import { limitText } from "../logic/text";
import { Table, useFew } from "./table";

const FEW = 14;

export function Limits({ timeouts }: { timeouts: readonly Timeout[] }) {
  const [visible, more] = useFew(ordered(timeouts), FEW);
  if (visible.length === 0) return null;
  const further = columns(timeouts);
  return (
    <section class="limits">
      <details>
        <summary>Limits in force</summary>
        <Table name="Limits" heads={["What", ["Limit", "number"], "Source", ...further.map(([, title]) => [title, "number"] as const)]}>
          {visible.map((timeout) => (
            <tr key={`${timeout.what} ${timeout.section ?? ""}`}>
              <th scope="row" class={timeout.section === null ? undefined : "code"}>{limited(timeout)}</th>
              <td class="number force">{limitText(timeout.in_force)}</td>
              <td class="source">{origin(timeout)}</td>
              {further.map(([name]) => <td key={name} class="number">{limitText(timeout[name])}</td>)}
            </tr>
          ))}
        </Table>
        {more}
      </details>
    </section>
  );
}
