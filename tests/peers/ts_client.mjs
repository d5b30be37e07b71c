// The TypeScript client 2.4: calls a tool, answers what it asks, and prints what it saw as one line of JSON.
//   node ts_client.mjs http URL TOOL ARGUMENTS
//   node ts_client.mjs stdio COMMAND-AS-JSON TOOL ARGUMENTS
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// The packages live beside the pinned Node, not beside this file.
const require = createRequire(process.env.PEERS_NODE);
const load = name => import(pathToFileURL(require.resolve(name)).href).then(m => m.default ?? m);
const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
const { StdioClientTransport } = await load('@modelcontextprotocol/client/stdio');

const [kind, target, tool, given] = process.argv.slice(2);
const answers = [];
const client = new Client(
    { name: 'peer', version: '1.0.0' },
    {
        capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
        versionNegotiation: { mode: 'auto' }
    }
);
client.setRequestHandler('elicitation/create', async request => {
    answers.push(request.params.message);
    const asked = Object.keys(request.params.requestedSchema.properties);
    return { action: 'accept', content: asked.includes('sure') ? { sure: true } : { room: 'Oak', seats: 6 } };
});
client.setRequestHandler('sampling/createMessage', async () => ({
    role: 'assistant',
    model: 'none',
    content: { type: 'text', text: 'carpe diem' }
}));
client.setRequestHandler('roots/list', async () => ({ roots: [{ uri: 'file:///srv' }] }));

const [command, ...args] = kind === 'stdio' ? JSON.parse(target) : [];
const transport =
    kind === 'stdio'
        ? new StdioClientTransport({ command, args, env: { ...process.env }, stderr: 'ignore' })
        : new StreamableHTTPClientTransport(new URL(target));
await client.connect(transport);
const tools = (await client.listTools()).tools.map(listed => listed.name);
const progress = [];
const result = await client.callTool(
    { name: tool, arguments: JSON.parse(given) },
    { onprogress: told => progress.push(told.message) }
);
console.log(
    JSON.stringify({
        version: client.getNegotiatedProtocolVersion(),
        server: client.getServerVersion()?.name,
        tools,
        answers,
        progress,
        result
    })
);
await client.close();
