// The TypeScript SDK's server 2.4: asks a room, then a confirmation, then books.
// Run as a program: `stdio`, or `http`, which prints its port. `hold` writes to the file `EVENTS`.
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// The packages live beside the pinned Node, not beside this file.
const require = createRequire(process.env.PEERS_NODE);
const load = name => import(pathToFileURL(require.resolve(name)).href).then(m => m.default ?? m);
const { McpServer, createMcpHandler, inputRequired, acceptedContent } = await load('@modelcontextprotocol/server');
const { serveStdio } = await load('@modelcontextprotocol/server/stdio');
const { toNodeHandler } = await load('@modelcontextprotocol/node');
const { z } = await load('zod');

const room = z.object({ room: z.enum(['Elm', 'Oak']), seats: z.number().int().min(1).default(4) });
const sure = z.object({ sure: z.boolean() });

const say = text => ({ content: [{ type: 'text', text }] });
const note = what => appendFileSync(process.env.EVENTS, `rooms-by-typescript ${what}\n`);

// Ask one thing, and tell what came back.
function asking(server, name, request, told) {
    server.registerTool(name, { description: `To ${name}.` }, async ctx => {
        const found = ctx.mcpReq.inputResponses?.[name];
        return found ? say(`${name}: ${told(found)}`) : inputRequired({ inputRequests: { [name]: request } });
    });
}

function others(server) {
    asking(server, 'visit', inputRequired.elicitUrl({
        message: 'Sign in', url: 'https://example.org/sign-in', elicitationId: 'visit-1'
    }), found => found.action);
    asking(server, 'dream', inputRequired.createMessage({
        messages: [{ role: 'user', content: { type: 'text', text: 'A motto?' } }], maxTokens: 20
    }), found => found.content.text);
    asking(server, 'where', inputRequired.listRoots(), found => found.roots.length);
    server.registerTool('count', { description: 'Count with progress.', inputSchema: z.object({ to: z.number() }) }, async ({ to }, ctx) => {
        const progressToken = ctx.mcpReq._meta?.progressToken;
        for (let number = 1; number <= to && progressToken !== undefined; number++) {
            const params = { progressToken, progress: number, total: to, message: `at ${number}` };
            await ctx.mcpReq.notify({ method: 'notifications/progress', params });
        }
        return say('counted');
    });
    server.registerTool('hold', { description: 'Wait until cancelled.' }, async ctx => {
        note('holding');
        await new Promise(resolve => ctx.mcpReq.signal.addEventListener('abort', resolve, { once: true }));
        note('let go');
        return say('never');
    });
}

function factory() {
    const server = new McpServer({ name: 'rooms-by-typescript', version: '1.0' }, { capabilities: { tools: {} } });
    server.registerTool('book', { description: 'Book a room.', inputSchema: z.object({ day: z.string() }) }, async ({ day }, ctx) => {
        const chosen = acceptedContent(ctx.mcpReq.inputResponses, 'room', room);
        if (chosen) {
            return inputRequired({
                inputRequests: { sure: inputRequired.elicit({ message: `Book ${chosen.room}?`, requestedSchema: sure }) },
                requestState: `${chosen.room} for ${chosen.seats}`
            });
        }
        const agreed = acceptedContent(ctx.mcpReq.inputResponses, 'sure', sure);
        if (agreed) {
            const text = agreed.sure ? `${ctx.mcpReq.requestState()} on ${day}` : 'nothing';
            return { content: [{ type: 'text', text }] };
        }
        return inputRequired({
            inputRequests: { room: inputRequired.elicit({ message: `Which on ${day}?`, requestedSchema: room }) }
        });
    });
    others(server);
    return server;
}

if (process.argv[2] === 'stdio') {
    serveStdio(factory);
} else {
    const handler = toNodeHandler(createMcpHandler(factory));
    const http = createServer((request, response) => handler(request, response));
    http.listen(0, '127.0.0.1', () => console.log(http.address().port));
}
