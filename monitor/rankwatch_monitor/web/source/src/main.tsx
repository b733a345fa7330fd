import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { takeTokenFromAddress } from "./api/session";
import { startClock } from "./api/connection";
import { addressOf, parse } from "./logic/route";
import "./style/tokens.css";
import "./style/base.css";
import "./style/shell.css";
import "./style/fleet.css";
import "./style/job.css";
import "./style/incident.css";
import "./style/grid.css";
import "./style/table.css";
import "./style/launchers.css";
import "./style/goodput.css";
import "./style/stragglers.css";
import "./style/charts.css";
import "./style/kernels.css";
import "./style/place.css";
import "./style/digest.css";
import "./style/control.css";
import "./style/phone.css";
import "./style/print.css";
import { Fleet } from "./view/fleet";
import { Job } from "./view/job";
import { NodePage } from "./view/node";
import { grouping, look, overlay, range, selected } from "./view/selection";
import { Shell } from "./view/shell";
import { startTheme } from "./view/theme";
import { joinUnits } from "./view/units";

const route = signal(parse(location.hash));

function Page() {
  const here = route.value;
  const crumbs = here.view === "fleet" ? <span aria-current="page">Jobs</span> : <a href="#/">Jobs</a>;
  const view =
    here.view === "fleet" ? <Fleet hours={here.hours} />
    : here.view === "node" ? <NodePage key={here.host} host={here.host} />
    : <Job key={here.job} id={here.job} requested={here.incident} tab={here.tab} sight={here.sight} />;
  return <Shell crumbs={crumbs}>{view}</Shell>;
}

/** Debounces address updates: moving the pointer over the grid selects many ranks a second, and browsers limit the rate. */
const ADDRESS_AFTER_MS = 300;

/** The address last read or written here. A different one in the address bar was typed and is still to be read. */
let known = location.hash;

/** Keep the selection in the address, so that a copied link opens the same view. */
function keepAddress(): void {
  let timer = 0;
  effect(() => {
    const address = addressOf(route.value, { rank: selected.value, look: look.value, group: grouping.value, range: range.value, overlay: overlay.value });
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      const same = address === "#/" ? location.hash.length < 3 : location.hash === address;
      if (same || location.hash !== known) return;
      history.replaceState(null, "", address);
      known = location.hash;
    }, ADDRESS_AFTER_MS);
  });
}

function readAddress(): void {
  known = location.hash;
  route.value = parse(known);
}

/** "/" goes to the search field. */
function keys(event: KeyboardEvent): void {
  const at = event.target as HTMLElement;
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select, textarea")) return;
  const field = document.querySelector<HTMLInputElement>("main input[type=search]");
  if (field) event.preventDefault();
  field?.focus();
}

joinUnits();
await takeTokenFromAddress();
startTheme();
startClock();
keepAddress();
addEventListener("hashchange", readAddress);
addEventListener("keydown", keys);
render(<Page />, document.getElementById("page")!);
