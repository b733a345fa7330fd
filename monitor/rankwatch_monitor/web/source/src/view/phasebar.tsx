// The phases of an incident as a proportional bar, with figures below.

import { addingUp, type Phase, took } from "../logic/phases";
import { clock, limitText } from "../logic/text";

export function PhaseBar({ phases }: { phases: Phase[] }) {
  if (phases.length === 0) return null;
  const total = phases.reduce((sum, phase) => sum + phase.seconds, 0);
  const shown = addingUp(phases.map(({ seconds }) => seconds));
  const kind = (phase: Phase) => phase.name.toLowerCase();
  // Of the detection the limit is as configured or learned: only what comes on top of it is the monitor's own.
  const pieces = phases.flatMap((phase) => (phase.limit === null ? [{ phase, seconds: phase.seconds, kind: kind(phase) }] : [
    { phase, seconds: phase.limit, kind: "limit" }, { phase, seconds: phase.seconds - phase.limit, kind: kind(phase) },
  ]));
  return (
    <div class="phases">
      {/* One colour from end to end would show nothing. */}
      {pieces.length > 1 && <div class="track" aria-hidden="true">
        {pieces.map(({ phase, seconds, kind: each }) => (
          // A floor of 0.4 % keeps a phase of milliseconds visible next to minutes.
          <i key={each} data-phase={each} class={phase.to === null ? "going-on" : undefined} style={{ flexGrow: Math.max(seconds, total * 0.004) }} />
        ))}
      </div>}
      <ol>
        {phases.map((phase, i) => (
          <li key={phase.name} data-phase={kind(phase)}>
            <i aria-hidden="true" />
            <span>{phase.name}</span>
            <b>{took(shown[i]!, phase.to === null)}</b>
            {phase.limit !== null && <small data-phase="limit"><i aria-hidden="true" />of which {limitText(phase.limit)} is the limit</small>}
            <small>{phase.note ?? (phase.to === null ? "so far" : `${phase.ends} ${clock(phase.to, phase.to)}`)}</small>
          </li>
        ))}
      </ol>
    </div>
  );
}
