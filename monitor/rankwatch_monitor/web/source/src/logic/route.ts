// Addresses within the page: #/  #/jobs/ID  #/jobs/ID/incidents/IID

export type Route = { view: "fleet" } | { view: "job"; job: string; incident: string | null };

export function parse(hash: string): Route {
  const [place, job, below, incident] = hash.replace(/^#?\/?/, "").split("/").map(decoded);
  if (place !== "jobs" || !job) return { view: "fleet" };
  return { view: "job", job, incident: below === "incidents" && incident ? incident : null };
}

// A hand-typed address may hold a stray percent sign; it is then taken as it stands.
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function jobAddress(job: string): string {
  return `#/jobs/${encodeURIComponent(job)}`;
}

export function incidentAddress(job: string, incident: string): string {
  return `${jobAddress(job)}/incidents/${encodeURIComponent(incident)}`;
}
