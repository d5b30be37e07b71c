// The TypeScript SDK as a client: the package `client` 2.4, or with `sdk1` the package `sdk` 1.32.
// Arguments: client | sdk1, auto | legacy, http URL | stdio COMMAND...  Prints one line of JSON.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// The packages live beside the pinned Node, not beside this file.
const require = createRequire(process.env.PEERS_NODE);
const load = name => import(pathToFileURL(require.resolve(name)).href).then(m => m.default ?? m);

const [kind, mode, transport, ...target] = process.argv.slice(2);
const calls = [['about', {}], ['form', { what: 'orders' }], ['sample', {}], ['roots', {}], ['decline', {}],
    ['two_rounds', {}], ['together', {}]];
const content = { region: 'eu', size: 3, name: 'Ada', color: 'green' };
const info = { name: 'peer', version: '1.0' };
const capabilities = { elicitation: {}, sampling: {}, roots: {} };

function elicit(request) {
    if (request.params.message.startsWith('Decline')) return { action: 'decline' };
    const fields = Object.keys(request.params.requestedSchema.properties);
    return { action: 'accept', content: Object.fromEntries(fields.map(name => [name, content[name]])) };
}
const sample = () => ({ role: 'assistant', model: 'm', content: { type: 'text', text: 'said' } });
const roots = () => ({ roots: [{ uri: 'file:///desk' }] });

let client, link;
if (kind === 'sdk1') {
    const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { StdioClientTransport } = await load('@modelcontextprotocol/sdk/client/stdio.js');
    const types = await load('@modelcontextprotocol/sdk/types.js');
    client = new Client(info, { capabilities });
    client.setRequestHandler(types.ElicitRequestSchema, elicit);
    client.setRequestHandler(types.CreateMessageRequestSchema, sample);
    client.setRequestHandler(types.ListRootsRequestSchema, roots);
    link = transport === 'http'
        ? new StreamableHTTPClientTransport(new URL(target[0]))
        : new StdioClientTransport({ command: target[0], args: target.slice(1), env: process.env });
} else {
    const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
    const { StdioClientTransport } = await load('@modelcontextprotocol/client/stdio');
    client = new Client(info, { capabilities, versionNegotiation: { mode } });
    client.setRequestHandler('elicitation/create', elicit);
    client.setRequestHandler('sampling/createMessage', sample);
    client.setRequestHandler('roots/list', roots);
    link = transport === 'http'
        ? new StreamableHTTPClientTransport(new URL(target[0]))
        : new StdioClientTransport({ command: target[0], args: target.slice(1), env: process.env });
}
await client.connect(link);
const found = {};
for (const [name, args] of calls) {
    const result = await client.callTool({ name, arguments: args });
    found[name] = result.content[0].text;
}
await client.close();
console.log(JSON.stringify(found));
