// Stack groups side by side: the culprit first, the training code's own frames highlighted.

import type { Signal } from "@preact/signals";
import type { StackFrame, Incident, IncidentDetail, ShownLog, StackGroup } from "../api/types";
import { asOf } from "../api/connection";
import { culpritLabel, withoutStack } from "../logic/export";
import { sharedOuter, shortFile } from "../logic/frames";
import { blame, capturedWords, withoutStacks, withoutTraceback } from "../logic/incidents";
import { plural, runs } from "../logic/text";
import { Copy, Run } from "./copy";

/** Inner frames shown; the rest is folded. */
const INNER = 14;
/** Failed ranks without a traceback that are shown. */
const FAILED = 4;
/** Reasons for missing stacks that are shown. */
const ERRORS = 8;

export function Stacks({ detail, incident, former }: { detail: Signal<IncidentDetail | null>; incident: Incident; former: boolean }) {
  const groups = [...(detail.value?.stack_groups ?? [])].sort((a, b) => Number(b.is_culprit) - Number(a.is_culprit));
  const errors = withoutStack(detail.value?.stack_errors ?? []);
  const shared = sharedOuter(groups);
  const failed = withoutTraceback(incident, groups);
  return (
    <section class="stacks">
      <h2>
        Stacks {groups.length > 0 && <small>{former && `of attempt ${incident.attempt}, `}{capturedWords(incident, asOf.value)}innermost frame first</small>}
      </h2>
      {groups.length === 0 && <p class="note">{detail.value === null ? "Loading the stacks." : withoutStacks(incident)}</p>}
      <div class="groups">
        {groups.length > 0 && failed.slice(0, FAILED).map(({ rank, reason }) => (
          <section key={rank} class={`group ${blame(incident)}`}>
            <h3><b>rank {rank}</b><span class="tag">{blame(incident)}</span></h3>
            <p class="exception">{reason}</p>
            <p class="note">No traceback of it was received.</p>
          </section>
        ))}
        {groups.map((group) => (
          <Group key={group.ranks.join()} group={group} shared={shared} blame={blame(incident)} tag={culpritLabel(group, detail.value!)} />
        ))}
      </div>
      {errors.length > 0 && (
        <ul class="errors">
          {errors.slice(0, ERRORS).map((line) => <li key={line}>{line}</li>)}
          {errors.length > ERRORS && <li>and {plural(errors.length - ERRORS, "more reason")}</li>}
        </ul>
      )}
      {incident.node_checks.length > 0 && (
        <ul class="errors">
          {incident.node_checks.map(({ node, host, text }) => <li key={`${node} ${text}`}>Node {host || node} fails its check: {text}</li>)}
        </ul>
      )}
      {detail.value?.flight_dumps && (
        <p class="note">
          <a href={detail.value.flight_dumps.path} download>Flight recorder dumps</a> of {plural(detail.value.flight_dumps.ranks.length, "rank")}, as JSON.
          For torchfrtrace: <code>rankwatch incidents {incident.job_id} {incident.id} --flight-recorder FOLDER</code>
        </p>
      )}
      {detail.value?.nccl.map(({ node, text, lines }) => (
        <section key={node} class="nccl">
          <p class="note">{text}</p>
          <ul class="errors">{lines.map((line) => <li key={line}>{line}</li>)}</ul>
        </section>
      ))}
      <RankLogs logs={detail.value?.logs ?? []} />
    </section>
  );
}

function Group({ group, shared, blame, tag }: { group: StackGroup; shared: number; blame: string; tag: string }) {
  const own = group.frames.slice(0, group.frames.length - shared);
  const inner = own.slice(0, INNER);
  const several = group.ranks.length > 1;
  return (
    <section class={group.is_culprit ? `group ${blame}` : "group"}>
      <h3>
        <b>{several ? plural(group.ranks.length, "rank") : `rank ${group.ranks[0]}`}</b>
        {tag !== "" && <span class="tag">{tag}</span>}
        {group.process_state !== "alive" && group.process_state !== "" && <small>process {group.process_state}</small>}
        {several && <small title={runs(group.ranks, 100)}>{runs(group.ranks, 3)}</small>}
      </h3>
      {group.note && <p class={group.method === "traceback" ? "exception" : "note"}>{group.note}</p>}
      {group.frames.length === 0 && <p class="note">No frame could be read.</p>}
      <Frames frames={inner} />
      <Folded frames={own.slice(INNER)} what="frame" label=" further out" />
      <Folded frames={group.frames.slice(own.length)} what="outer frame" label=" shared by all" />
    </section>
  );
}

function Folded({ frames, what, label }: { frames: StackFrame[]; what: string; label: string }) {
  if (frames.length === 0) return null;
  return (
    <details>
      <summary>
        {plural(frames.length, what)}{label}
      </summary>
      <Frames frames={frames} />
    </details>
  );
}

function Frames({ frames }: { frames: StackFrame[] }) {
  return (
    <ol>
      {frames.map((frame, depth) => (
        <li key={depth} class={frame.of_script ? "own" : undefined}>
          <span>{frame.function}</span>
          <small title={`${frame.file}:${frame.line}`}>
            {shortFile(frame.file)}:{frame.line}
          </small>
        </li>
      ))}
    </ol>
  );
}

/** The last lines that failed ranks printed, and what shows the whole of each log. */
function RankLogs({ logs }: { logs: readonly ShownLog[] }) {
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
