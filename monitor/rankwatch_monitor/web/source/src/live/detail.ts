// One incident with its stacks, read again when they change.

import { type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api/client";
import type { Incident, IncidentDetail } from "../api/types";

export function readDetail(job: string, incident: string, ended?: AbortSignal): Promise<IncidentDetail> {
  return get<IncidentDetail>(`/jobs/${encodeURIComponent(job)}/incidents/${encodeURIComponent(incident)}`, ended);
}

/** Null until the first answer. */
export function useDetail(job: string, incident: Incident | null): Signal<IncidentDetail | null> {
  const id = incident?.id;
  const detail = useMemo(() => signal<IncidentDetail | null>(null), [job, id]);
  useEffect(() => {
    if (id === undefined) return;
    const ended = new AbortController();
    readDetail(job, id, ended.signal).then(
      (answer) => (detail.value = answer),
      () => undefined, // shown by the connection bar
    );
    return () => ended.abort();
    // Stacks arrive with the capture: read again when the phase changes.
  }, [detail, incident?.phase, incident?.timeline.captured]);
  return detail;
}
