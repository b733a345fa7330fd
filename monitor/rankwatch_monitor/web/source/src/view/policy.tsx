// Editor of all policy settings, generated from the schema that the monitor serves.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, order, Problem } from "../api/client";
import type { JobSummary, PolicySchema, Setting } from "../api/types";
import type { SettingValue } from "../logic/policy";
import { asText, asValue, changed, grouped, shown, unitOf, withValues } from "../logic/policy";
import { capital, plural, words } from "../logic/text";
import { narrow } from "./preferences";
import { refusal } from "./control_token";

type Policy = Record<string, SettingValue>;

interface Props {
  job: JobSummary;
  /** What each action does. */
  meanings: Record<string, string>;
  explain: (meanings: Record<string, string>) => void;
  onChange: () => void;
}

export function PolicyEditor({ job, meanings, explain, onChange }: Props) {
  const path = `/jobs/${encodeURIComponent(job.id)}/policy`;
  const [settings, setSettings] = useState<Setting[] | null>(null);
  const [actions, setActions] = useState<Record<string, string>>({});
  const [policy, setPolicy] = useState<Policy>({});
  const [edited, edit] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<string | null>(null);
  const [done, setDone] = useState<string | null>(null);
  const [filter, setFilter] = useState("");
  const [differingOnly, showDifferingOnly] = useState(false);
  useEffect(() => {
    const ended = new AbortController();
    Promise.all([get<PolicySchema>("/policy/schema", ended.signal), get<Policy>(path, ended.signal)]).then(
      ([schema, found]) => (setSettings(schema.settings), setPolicy(found), setActions(schema.actions)),
      (failure) => failure instanceof Problem && setProblem(failure.message),
    );
    return () => ended.abort();
  }, [path]);
  useEffect(() => explain(Object.fromEntries(Object.entries(actions).map(([name, meaning]) => [name, withValues(meaning, settings ?? [], policy)]))), [actions, policy]);
  if (settings === null) return problem === null ? <p class="note">Loading the policy.</p> : <p class="refused" role="alert">{problem}</p>;

  const changes = changed(settings, policy, edited);
  const value = (setting: Setting) => asValue(setting, edited[setting.name]!, policy[setting.name] ?? null);
  const apply = async (event: SubmitEvent) => {
    event.preventDefault();
    setDone(null);
    try {
      setPolicy(await order<Policy>("PATCH", path, Object.fromEntries(changes.map((each) => [each.name, value(each)]))));
      edit({});
      onChange();
      setProblem(null);
      setDone(`${plural(changes.length, "value")} changed; new limits reach the ranks within two seconds.`);
    } catch (failure) {
      setProblem(refusal(failure));
    }
  };
  const isDefault = (setting: Setting) => asText(policy[setting.name] ?? null) === asText(setting.default);
  const textOf = ({ name, kind }: Setting) => edited[name] ?? asText(policy[name] ?? null, kind);
  const differing = (rows: readonly Setting[]) => rows.filter((each) => !isDefault(each)).length;
  const wanted = (each: Setting) => !differingOnly || !isDefault(each) || changes.includes(each);
  const found = ({ name, meaning }: Setting) => `${words(name)} ${name} ${meaning}`.toLowerCase().includes(filter.toLowerCase());
  const visible = settings.filter((each) => wanted(each) && found(each));
  const row = (setting: Setting) => (
    <div key={setting.name} class={changes.includes(setting) ? "changed" : isDefault(setting) ? undefined : "differs"}>
      <dt>
        <label for={`policy-${setting.name}`} class="code">{setting.name}</label>
        {!isDefault(setting) && <span class="tag">not the default</span>}
      </dt>
      <dd>
        <Field setting={setting} text={textOf(setting)} edit={(text) => edit({ ...edited, [setting.name]: text })} />
        {setting.unit && setting.kind !== "seconds_by_name" && <small>{unitOf(setting)}</small>}
        <small class="default">{isDefault(setting) && !changes.includes(setting) ? "default" : `default: ${shown(setting, setting.default)}`}</small>
      </dd>
      <dd class="meaning" id={`meaning-${setting.name}`}>
        {setting.meaning}
        {setting.optional && "; empty: off"}
        {setting.name.startsWith("on_") && meanings[textOf(setting)] && `. ${capital(words(textOf(setting)))}: ${meanings[textOf(setting)]}`}
        {changes.includes(setting) && <b> Now: {shown(setting, policy[setting.name] ?? null)}.</b>}
      </dd>
    </div>
  );
  return (
    <section class="policy" aria-labelledby="policy">
      <h2 id="policy">
        Policy <small>of this job; a change acts once it is applied: with the next evaluation, within 0.1 s, and in the ranks within 2 s</small>
      </h2>
      <div class="narrowing">
        <label class="line">
          Find
          <input type="search" value={filter} placeholder="timeout" onInput={(event) => setFilter(event.currentTarget.value)} />
        </label>
        <label class="only">
          <input type="checkbox" checked={differingOnly} onChange={(event) => showDifferingOnly(event.currentTarget.checked)} />
          Only those not at the default ({differing(settings)})
        </label>
      </div>
      <form onSubmit={apply}>
        {changes.length === 0 && (
          <p class="none">
            <button type="submit" class="go" disabled>Apply</button> <button type="button" disabled>Discard</button> <small>No setting is changed yet.</small>
          </p>
        )}
        {visible.length === 0 && <p class="note">{filter === "" ? "Every setting is at its default." : `No setting ${differingOnly ? "that differs from its default " : ""}has "${filter}" in its name or meaning.`}</p>}
        {grouped(visible).map(({ title, basic, expert }) => (
          <Part key={title} title={title} differing={differing([...basic, ...expert])} number={basic.length + expert.length} force={basic.map((each) => `${each.name} ${shown(each, policy[each.name] ?? null)}`).join(", ")} open={filter !== "" || differingOnly || [...basic, ...expert].some((each) => changes.includes(each))}>
            {basic.length > 0 && <dl>{basic.map(row)}</dl>}
            {expert.length > 0 && (
              <details open={filter !== "" || differingOnly || expert.some((each) => changes.includes(each))}>
                <summary>
                  {plural(expert.length, "expert setting")}
                  {differing(expert) > 0 && `, ${differing(expert)} not at the default`}
                </summary>
                <dl>{expert.map(row)}</dl>
              </details>
            )}
          </Part>
        ))}
        {changes.length > 0 && <div class="confirm">
          {problem !== null && <p class="refused" role="alert">{problem}</p>}
          <ul>
            {changes.map((each) => (
              <li key={each.name}>
                <span class="code">{each.name}</span>: {shown(each, policy[each.name] ?? null)} → <b>{each.kind === "seconds_by_name" ? edited[each.name] || "none" : shown(each, value(each))}</b>
              </li>
            ))}
          </ul>
          <button type="submit" class="go">Apply {plural(changes.length, "change")}</button>
          <button type="button" onClick={() => (edit({}), setProblem(null))}>Discard</button>
        </div>}
      </form>
      {done !== null && <p class="accepted" role="status">{done}</p>}
    </section>
  );
}

interface PartProps {
  title: string;
  /** How many settings it has, and how many of them are not at the default. */
  number: number;
  differing: number;
  /** Its settings in force, but for the expert ones. */
  force: string;
  /** Whether it is unfolded on a phone. */
  open: boolean;
  children: ComponentChildren;
}

/** A group of settings; on a phone it is folded. */
function Part({ title, number, differing, force, open, children }: PartProps) {
  const note = differing > 0 && `${differing} not at the default`;
  if (!narrow.value) return <div class="part"><h3>{title} {note && <small>{note}</small>}</h3>{children}</div>;
  return (
    <details class="part" open={open}>
      <summary><b>{title}</b> <small>{plural(number, "setting")}{note && `, ${note}`}</small><small class="force">{force}</small></summary>
      {children}
    </details>
  );
}

function Field({ setting, text, edit }: { setting: Setting; text: string; edit: (text: string) => void }) {
  const common = { id: `policy-${setting.name}`, "aria-describedby": `meaning-${setting.name}` };
  if (setting.kind === "switch" || setting.kind === "choice") {
    const choices = setting.kind === "switch" ? ["true", "false"] : setting.choices;
    return (
      <select {...common} value={text} onChange={(event) => edit(event.currentTarget.value)}>
        {choices.map((each) => (
          <option key={each} value={each}>{setting.kind === "switch" ? (each === "true" ? "on" : "off") : words(each)}</option>
        ))}
      </select>
    );
  }
  const hint = setting.kind === "seconds_by_name" ? "none, or step=180" : setting.optional ? "off" : undefined;
  return (
    <input
      {...common} value={text} placeholder={hint} autocomplete="off" spellcheck={false}
      inputMode={setting.kind === "whole" ? "numeric" : setting.kind === "number" ? "decimal" : undefined}
      onInput={(event) => edit(event.currentTarget.value)}
    />
  );
}
