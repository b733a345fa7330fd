// Stragglers with cause and cost, and the scores of all ranks. A sentence that the headline of the job contains already is
// not repeated.

import { useState } from "preact/hooks";
import type { JobSummary, Launcher, Performance, Straggler } from "../api/types";
import { asOf } from "../api/connection";
import { byWaiting, findingFacts, findingWords, foundBy, isMeasured, isShown, restOf, score, SCORES, slowIn, slowRanks } from "../logic/stragglers";
import { ago, capital, clock, count, gpuTime, ofStep, roughly, wholePercent, words } from "../logic/text";
import { Fold } from "./fold";
import { WhatToDoSlow } from "./nextaction";
import { NodeLink } from "./placelinks";
import { SlowTag } from "./slowtag";
import { selected } from "./selection";

const FEW = 8;
const WORST = 5;

/** `headline`: the text at the top of the page, which is not repeated, as that of `account` below it; `led`: what to do stands there too. */
export function Stragglers({ job, launchers, performance, headline, account, led }: { job: JobSummary; launchers: readonly Launcher[]; performance: Performance; headline: string; account: string; led: boolean }) {
  const { finding, stragglers, open, ended } = performance;
  const facts = findingFacts(finding);
  const sentence = findingWords(finding);
  const stated = (led && isMeasured(performance)) || isShown(sentence.replace(/^No straggler: |\.$/g, ""), account);
  const rest = stated ? "" : restOf(sentence, headline);
  return (
    <section class="stragglers" aria-labelledby="stragglers">
      <h2 id="stragglers">
        Stragglers <small>{open === 0 ? "none now" : `${count(open)} now, costliest first`}</small>
      </h2>
      {(rest !== "" || facts !== "") && (
        <p class="finding" data-verdict={finding.verdict}>
          {rest}
          {facts && <small>{facts}{finding.since !== null && ` · since ${clock(finding.since, asOf.value)}, for ${roughly(asOf.value - finding.since)}`}</small>}
        </p>
      )}
      {!led && job.advice?.slow && <WhatToDoSlow job={job} launchers={launchers} reason={headline} />}
      {stragglers.length > 0 && <Table name="Stragglers now, costliest first" rows={stragglers} total={open} above={`${headline} ${sentence}`} acted={led} />}
      {ended.length > 0 && (
        <details>
          <summary>Recently ended ({count(ended.length)})</summary>
          <Table name="Stragglers that have ended" rows={ended} total={ended.length} over />
        </details>
      )}
      <p class="note">
        Stragglers are detected {performance.reference === "fastest" ? "by the thresholds of the fastest reference" : "by robust scores and lateness"}.
        {performance.cost_gpu_hours > 0 && ` Their total cost is ${gpuTime(3600 * performance.cost_gpu_hours)}.`}
      </p>
    </section>
  );
}

/** The spread of the scores by reference, and the worst ranks. */
export function Scores({ performance }: { performance: Performance }) {
  if (performance.at === null) return null;
  return (
    <Fold name="scores" heading={<>GPU scores <small>1 is as fast as the reference{performance.gpu_at !== null && `; reported ${ago(performance.gpu_at, asOf.value)}`}</small></>}>
      <div class="pair">
        <Distribution performance={performance} />
        <Worst performance={performance} />
      </div>
    </Fold>
  );
}

interface Rows {
  name: string;
  rows: readonly Straggler[];
  total: number;
  /** The text above the table; reasons in it are not repeated. */
  above?: string;
  over?: boolean;
  /** What the monitor does about the first one stands above. */
  acted?: boolean;
}

function Table({ name, rows, total, above = "", over = false, acted = false }: Rows) {
  const [all, showAll] = useState(false);
  const visible = all ? rows : rows.slice(0, FEW);
  const known = visible.some((each) => each.own != null);
  const why = visible.some((each) => !isShown(each.reason, above) || (each.action !== "log" && !(acted && rows.length === 1)));
  return (
    <>
      <div class="scroll" role="region" aria-label={name} tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">Rank</th>
              <th scope="col">Node</th>
              <th scope="col">Slow in</th>
              {known && <th scope="col" class="number" title="Seconds of each step that it spends on this, and the median of its peers">It takes</th>}
              <th scope="col" class="number">Others wait</th>
              <th scope="col" class="number">Share of a step</th>
              <th scope="col" class="number">GPU score</th>
              <th scope="col" class="number">Cost</th>
              <th scope="col">Since</th>
              {over && <th scope="col">Ended</th>}
              {why && <th scope="col">Why</th>}
            </tr>
          </thead>
          <tbody>
            {visible.map((each) => (
              <tr key={each.id} aria-selected={selected.value === each.rank} onClick={() => (selected.value = each.rank)}>
                <th scope="row" class="number">{each.rank}</th>
                <td><NodeLink host={each.host} /></td>
                <td>{slowIn(each.cause)}{each.section && <small>section <span class="code">{each.section}</span></small>}</td>
                {known && <td class="number">{each.own == null ? "–" : <>{ofStep(each.own)}<small>its peers {ofStep(each.peers)}</small></>}</td>}
                <td class="number">{ofStep(each.lateness)}</td>
                <td class="number force">{wholePercent(each.share)}</td>
                <td class="number" title={foundBy(each)}>{score(each.score)}</td>
                <td class="number">{gpuTime(3600 * each.cost_gpu_hours)}</td>
                <td>{clock(each.since, asOf.value)}{!over && <small>{ago(each.since, asOf.value).replace(/ .* ago/, " ago")}</small>}</td>
                {over && <td>{clock(each.ended, asOf.value)}</td>}
                {why && (
                  <td class="why">
                    {isShown(each.reason, above) ? <small>see above</small> : each.reason}
                    {each.action !== "log" && <small>{words(each.action)}{each.action_reason && `: ${each.action_reason}`}</small>}
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {visible.length < total && (
        <p class="more">
          {count(visible.length)} of {count(total)}
          {visible.length < rows.length && (
            <button type="button" class="quiet" onClick={() => showAll(true)}>
              Show {rows.length === total ? "all" : "the first"} {count(rows.length)}
            </button>
          )}
        </p>
      )}
    </>
  );
}

function Distribution({ performance }: { performance: Performance }) {
  if (SCORES.every(([name]) => performance.overall[name] == null)) {
    return <p class="note">No rank has reported kernel timings yet.</p>;
  }
  return (
    <div>
      <h3>Over all ranks</h3>
      <div class="scroll" role="region" aria-label="GPU scores over all ranks" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Score</th>
              <th scope="col" class="number">Worst</th>
              <th scope="col" class="number">Median</th>
              <th scope="col" class="number">Best</th>
              <th scope="col">Compared with</th>
            </tr>
          </thead>
          <tbody>
            {SCORES.filter(([name]) => performance.overall[name] != null).map(([name, title, against]) => {
              const found = performance.overall[name];
              return (
                <tr key={name}>
                  <th scope="row">{title}</th>
                  <td class="number force">{score(found?.min)}{performance.lowest?.[name] != null && <small> rank {performance.lowest[name]}</small>}</td>
                  <td class="number">{score(found?.median)}</td>
                  <td class="number">{score(found?.max)}</td>
                  <td class="why">{against}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Worst({ performance }: { performance: Performance }) {
  const visible = byWaiting(performance.ranks).slice(0, WORST);
  const slow = slowRanks(performance);
  const known = SCORES.filter(([name]) => visible.some((each) => each[name] !== null));
  if (visible.length === 0) return null;
  return (
    <div>
      <h3>Ranks that the others wait for longest</h3>
      <div class="scroll" role="region" aria-label="Ranks that the others wait for longest" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">Rank</th>
              <th scope="col">Node</th>
              <th scope="col" class="number">Others wait</th>
              {known.map(([name, title]) => <th key={name} scope="col" class="number">{capital(title)}</th>)}
            </tr>
          </thead>
          <tbody>
            {visible.map((each) => (
              <tr key={each.rank} aria-selected={selected.value === each.rank} onClick={() => (selected.value = each.rank)}>
                <th scope="row" class="number">{each.rank}</th>
                <td><NodeLink host={each.host} />{slow.has(each.rank) && <SlowTag of={slow.get(each.rank)!} />}</td>
                <td class="number">{each.lateness !== null && each.lateness <= 0 ? "no" : ofStep(each.lateness)}</td>
                {known.map(([name]) => <td key={name} class="number">{score(each[name])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
