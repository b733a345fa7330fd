// The last lines that failed ranks printed, and what shows the whole of each log.

import type { ShownLog } from "../api/types";
import { Copy, Run } from "./copy";

export function RankLogs({ logs }: { logs: readonly ShownLog[] }) {
  return (
    <>
      {logs.map(({ rank, host, stream, lines, title, text, place }, i) => (
        <details class="ranklog" key={`${rank} ${stream}`} open={i === 0}>
          <summary><b>{title}</b> {host !== "" && `on ${host} `}{stream}</summary>
          <p class="note">{text} {lines.length > 0 && <Copy text={lines.join("\n")} label="Copy log" />}</p>
          {lines.length > 0 && <pre>{lines.join("\n")}</pre>}
          {place.command !== "" && <Run {...place} />}
        </details>
      ))}
    </>
  );
}
