// The incident, or a job without one, as an object to hand on: its address, its stacks, files.

import type { Signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { IncidentDetail, JobSummary } from "../api/types";
import { now } from "../api/connection";
import { readDetail } from "../live/detail";
import { incidentText, jobText, stacksText } from "../logic/export";
import { incidentAddress, jobAddress } from "../logic/route";
import { copyText, saveFile } from "./clipboard";
import { Copy } from "./copy";
import { announcement } from "./shell";

const SHOWN_MS = 2500;

/** `without`: why the incident has no stacks. */
export function Share({ job, id, detail, without }: { job: JobSummary; id: string; detail: Signal<IncidentDetail | null>; without: string }) {
  const [result, setResult] = useState("");
  useEffect(() => {
    if (result !== "") announcement.value = result;
    const timer = setTimeout(() => setResult(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [result]);
  const address = whole(incidentAddress(job.id, id));
  const copy = async (text: string, what: string) => setResult((await copyText(text)) ? `${what} copied` : "The browser does not allow to copy.");
  const save = async (kind: "json" | "txt") => {
    const found = await readDetail(job.id, id).catch(() => detail.value);
    if (found === null) return setResult("The monitor does not answer.");
    const name = `${job.id}-${id}.${kind}`;
    if (kind === "json") saveFile(name, JSON.stringify(found, null, 2), "application/json");
    else saveFile(name, incidentText(job, found, address, now.value), "text/plain");
  };
  const stacks = detail.value === null ? "" : stacksText(detail.value);
  return (
    <details class="share" role="group" aria-label="Share this incident">
      <summary>Share</summary>
      <button type="button" onClick={() => void copy(address, "Link")}>Copy link</button>
      <button type="button" disabled={stacks === ""} title={stacks === "" ? without : undefined} onClick={() => void copy(stacks, "Stacks")}>Copy stacks</button>
      <button type="button" onClick={() => void save("json")}>Download .json</button>
      <button type="button" onClick={() => void save("txt")}>Download .txt</button>
      <small>{result || (detail.value !== null && stacks === "" ? `No stacks to copy. ${without}` : "")}</small>
    </details>
  );
}

/** What is known of a job that is lost or failed. */
export function ShareJob({ job }: { job: JobSummary }) {
  const address = whole(jobAddress(job.id));
  return (
    <details class="share" role="group" aria-label="Share this job">
      <summary>Share</summary>
      <Copy text={address} label="Copy link" />
      <button type="button" onClick={() => saveFile(`${job.id}.json`, JSON.stringify(job, null, 2), "application/json")}>Download .json</button>
      <button type="button" onClick={() => saveFile(`${job.id}.txt`, jobText(job, address), "text/plain")}>Download .txt</button>
    </details>
  );
}

const whole = (address: string) => location.origin + location.pathname + address;
