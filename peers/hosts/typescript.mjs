// The TypeScript SDK as a client: the package `client` 2, or with `sdk1` the package `sdk` 1.
// Arguments: URL, asks | mute, client | sdk1, auto | legacy. Prints one line of JSON.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

// The packages live beside the pinned Node, not beside this file.
const require = createRequire(process.env.PEERS_NODE);
const load = name => import(pathToFileURL(require.resolve(name)).href).then(m => m.default ?? m);

const [url, mode, kind, negotiation] = process.argv.slice(2);
const calls = JSON.parse(process.env.CALLS);
const answers = { reason: 'late', approve: true };
const capabilities = mode === 'asks' ? { elicitation: {} } : {};
const info = { name: 'host', version: '1.0' };
const asked = [];

function elicit(request) {
    asked.push(request.params.message);
    const fields = Object.keys(request.params.requestedSchema.properties);
    return { action: 'accept', content: Object.fromEntries(fields.map(name => [name, answers[name]])) };
}

let client, transport;
if (kind === 'sdk1') {
    const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const types = await load('@modelcontextprotocol/sdk/types.js');
    client = new Client(info, { capabilities });
    if (mode === 'asks') client.setRequestHandler(types.ElicitRequestSchema, elicit);
    transport = new StreamableHTTPClientTransport(new URL(url));
} else {
    const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
    client = new Client(info, { capabilities, versionNegotiation: { mode: negotiation } });
    if (mode === 'asks') client.setRequestHandler('elicitation/create', elicit);
    transport = new StreamableHTTPClientTransport(new URL(url));
}
await client.connect(transport);
const found = {};
for (const [name, args] of calls) {
    try {
        const result = await client.callTool({ name, arguments: args });
        found[name] = (result.isError ? 'error result: ' : '') + result.content[0].text;
    } catch (error) {
        found[name] = `${error.constructor.name}: ${error.message}`;
    }
}
const protocol = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
await client.close();
const folder = kind === 'sdk1' ? 'sdk' : 'client';
const file = join(dirname(process.env.PEERS_NODE), 'node_modules', '@modelcontextprotocol', folder, 'package.json');
console.log(JSON.stringify({ version: JSON.parse(readFileSync(file)).version, protocol, asked, calls: found }));
