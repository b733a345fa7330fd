import { signal } from "@preact/signals";
import { render } from "preact";
import { takeTokenFromAddress } from "./api/token";
import { startClock } from "./live/connection";
import { parse } from "./logic/route";
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
import { Fleet } from "./view/fleet";
import { Job } from "./view/job";
import { Shell } from "./view/shell";
import { startTheme } from "./view/theme";

const route = signal(parse(location.hash));

function Page() {
  const here = route.value;
  if (here.view === "fleet") {
    return (
      <Shell crumbs={<span aria-current="page">Jobs</span>}>
        <Fleet />
      </Shell>
    );
  }
  return (
    <Shell crumbs={<a href="#/">Jobs</a>}>
      <Job key={here.job} id={here.job} asked={here.incident} />
    </Shell>
  );
}

takeTokenFromAddress();
startTheme();
startClock();
addEventListener("hashchange", () => (route.value = parse(location.hash)));
render(<Page />, document.getElementById("page")!);
