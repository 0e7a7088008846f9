// The projects that one is in. Where there are none, pages show nothing of projects.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";

/** One's projects, also closed ones; none until they are read. Admins are told of those of others, too. */
export function useProjects(me) {
  const [projects, setProjects] = useState([]);
  useEffect(() => {
    get("/v1/projects").then(({ items }) => setProjects(items.filter((one) => one.members.includes(me.name))), () => {});
  }, [me.name]);
  return projects;
}

/** Who may read an experiment, in words. */
export const readersOf = ({ visibility, project }) =>
  ({ private: "its owner", project: `project ${project}`, lab: "the lab" })[visibility];
