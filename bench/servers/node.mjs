// The TypeScript SDK on Node, with its HMAC codec: the tool looks whether the answer is there.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { randomBytes } from 'node:crypto';
import { pathToFileURL } from 'node:url';

// The packages live beside the pinned Node, not beside this file.
const require = createRequire(process.env.PEERS_NODE);
const load = name => import(pathToFileURL(require.resolve(name)).href).then(m => m.default ?? m);
const { McpServer, createMcpHandler, createRequestStateCodec, inputRequired, acceptedContent } =
    await load('@modelcontextprotocol/server');
const { serveStdio } = await load('@modelcontextprotocol/server/stdio');
const { toNodeHandler } = await load('@modelcontextprotocol/node');
const { z } = await load('zod');

const QUESTIONS = 5;
const placement = z.object({ region: z.enum(['eu-west', 'us-east']), size: z.number().int().min(1).max(10) });
const inputSchema = z.object({ name: z.string() });
const codec = createRequestStateCodec({ key: randomBytes(32) });
const said = text => ({ content: [{ type: 'text', text }] });

async function asked(message, answers) {
    return inputRequired({
        inputRequests: { [`part-${answers.length + 1}`]: inputRequired.elicit({ message, requestedSchema: placement }) },
        requestState: await codec.mint(answers)
    });
}

function known(ctx) {
    const answers = ctx.mcpReq.requestState() ?? [];
    const given = acceptedContent(ctx.mcpReq.inputResponses, `part-${answers.length + 1}`, placement);
    return given ? [...answers, given] : answers;
}

function factory() {
    const options = { capabilities: { tools: {} }, requestState: { verify: codec.verify } };
    const server = new McpServer({ name: 'bench', version: '0' }, options);
    server.registerTool('plain', { inputSchema }, async ({ name }) => said(`hello ${name}`));
    server.registerTool('mrtr', { inputSchema }, async ({ name }, ctx) => {
        const answers = known(ctx);
        if (!answers.length) return asked(`Where should ${name} run?`, answers);
        return said(`${name} in ${answers[0].region}, size ${answers[0].size}`);
    });
    server.registerTool('wizard', { inputSchema }, async ({ name }, ctx) => {
        const answers = known(ctx);
        if (answers.length < QUESTIONS) return asked(`Where should part ${answers.length + 1} of ${name} run?`, answers);
        return said(`${name} in ${QUESTIONS} parts, size ${answers.reduce((sum, a) => sum + a.size, 0)}`);
    });
    return server;
}

if (process.argv[2] === 'stdio') {
    serveStdio(factory);
} else {
    const handler = toNodeHandler(createMcpHandler(factory, { responseMode: 'json' }));
    const http = createServer((request, response) => handler(request, response));
    http.listen(0, '127.0.0.1', () => console.log(http.address().port));
}
