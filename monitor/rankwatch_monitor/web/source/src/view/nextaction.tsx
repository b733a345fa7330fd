// What to do now about a job: the monitor's advice, with its commands, the orders to confirm, and the section of the runbook.

import type { ComponentChildren } from "preact";
import type { Advice, JobSummary, Launcher, Step } from "../api/types";
import { asOf } from "../api/connection";
import { resumesAfter } from "../logic/checkpoint";
import { orderOf, type Prepared } from "../logic/nextaction";
import { remaining } from "../logic/policy";
import { jobAddress } from "../logic/route";
import { zoned } from "../logic/text";
import { Alternatives, Run } from "./copy";
import { type Fact, Facts } from "./facts";
import { Loss } from "./loss";
import { Remaining } from "./remaining";
import { prepared } from "./selection";
import { ShareJob } from "./share";

interface Props {
  job: JobSummary;
  advice: Advice;
  /** Of an order, which a person may change. */
  reason: string;
  launchers: readonly Launcher[];
  /** Further places to look. */
  children?: ComponentChildren;
}

export function WhatToDo({ job, advice, reason, launchers, children }: Props) {
  const { orders, steps, waits, otherwise } = advice;
  const lead = waits && <p>{zoned(advice.text, asOf.value)}.</p>;
  return (
    <section class="todo" aria-labelledby="todo">
      <h3 id="todo">What to do now</h3>
      {lead}
      {steps.length === 1 ? <OneStep step={steps[0]!} /> : steps.length > 1 && <ol>{steps.map((each) => <li key={each.text}><OneStep step={each} /></li>)}</ol>}
      <Alternatives of={advice.alternatives} />
      {otherwise && <OneStep step={otherwise} />}
      {advice.notes.length > 0 && <small>{zoned(advice.notes.join(" "), asOf.value)} </small>}
      {advice.weighs_restart && <Loss what="A restart" job={job} />}
      {job.ended_at !== null && <small>{resumesAfter(job, asOf.value)}</small>}
      <p class="ways">
        {orders.map(({ words, ...each }, i) => {
          const order = orderOf(each, reason);
          return order && <Offer key={each.action} job={job} order={order} words={words} launchers={launchers} go={i === 0 && advice.proposed && advice.condition === ""} />;
        })}
        {children}
        {job.ended_at === null && job.state !== "lost" && <a href={jobAddress(job.id, "control")}>Other actions</a>}
        {advice.runbook !== "" && <a href={`/manual/${advice.runbook}`}>Runbook</a>}
      </p>
    </section>
  );
}

const OneStep = ({ step: { text, ...run } }: { step: Step }) => <><p>{zoned(text, asOf.value)}</p>{run.command !== "" && <Run {...run} />}</>;

/** What to do about a job that reports nothing, or that has failed, and what is known of its end. `shared`: no incident below can be handed on. */
export function NextStep({ job, facts, shared }: { job: JobSummary; facts: Fact[]; shared: boolean }) {
  return (
    <div class="lead">
      <div class="beside">
        <WhatToDo job={job} advice={job.advice!} reason={job.headline || job.reason} launchers={[]} />
        {facts.length > 0 && <Facts kind="answers" facts={facts} />}
      </div>
      {shared && <ShareJob job={job} />}
    </div>
  );
}

/** What to do about a slow job. */
export const WhatToDoSlow = ({ job, launchers, reason }: Omit<Props, "advice">) => job.advice && (
  <WhatToDo job={job} advice={job.advice} reason={reason} launchers={launchers}>
    <a href={jobAddress(job.id, "timeline")}>Section timeline</a>
  </WhatToDo>
);

interface Offered {
  job: JobSummary;
  order: Prepared;
  words: string;
  launchers: readonly Launcher[];
  /** It is what is to be done now. */
  go: boolean;
}

/** The button of an order, which is confirmed on its tab, and the nodes that it leaves. */
function Offer({ job, order, words, launchers, go }: Offered) {
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job.id, "control");
  };
  return (
    <span class="offer">
      <button type="button" class={go ? "go" : undefined} onClick={open}>{words} …</button>
      {order.action === "restart_excluding_node" && <Remaining left={remaining([], order.ranks.join(","), launchers)} />}
    </span>
  );
}
