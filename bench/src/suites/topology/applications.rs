//! The servers behind the proxies.

use std::fs;
use std::path::Path;

use super::{Application, Position, collector};
use crate::suites::tools::Tools;
use crate::testbed::pod::{Container, CpuRole, Pod};
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, Testbed};

const APPLICATION: Container<'_> = Container::root("app", CpuRole::Load);

/// Larger than the buffers of sockets and proxies, so that a slow reader blocks the response.
const LARGE: usize = 1024 * 1024;
/// Path of the large response.
pub(in crate::suites) const LARGE_PATH: &str = "/large";

/// Debian's Python, which has wsproto; another one on the `PATH` may lack it.
const PYTHON: &str = "/usr/bin/python3";
/// A WebSocket echo server on the ports given as arguments. It handles frames one by one, so that
/// its behaviour does not depend on how a proxy splits the byte stream. It ignores connection
/// errors, which the cases provoke.
const ECHO: &str = "\
import asyncio, sys
from wsproto import ConnectionType, WSConnection, events
from wsproto.extensions import PerMessageDeflate

async def echo(reader, writer):
    socket, message, is_open = WSConnection(ConnectionType.SERVER), [], True
    while is_open and (data := await reader.read(65536)):
        socket.receive_data(data)
        for event in socket.events():
            if isinstance(event, events.Request):
                answer = events.AcceptConnection(extensions=[PerMessageDeflate()])
            elif isinstance(event, events.Message):
                message.append(event.data)
                if not event.message_finished:
                    continue
                answer = type(event)(data=message[0][:0].join(message))
                message = []
            elif isinstance(event, events.Ping):
                answer = event.response()
            elif isinstance(event, events.CloseConnection):
                answer, is_open = event.response(), False
            else:
                continue
            writer.write(socket.send(answer))
            await writer.drain()
            if not is_open:
                break

async def serve(reader, writer):
    try:
        await echo(reader, writer)
    except ConnectionError:
        pass
    finally:
        writer.close()

async def main():
    for port in sys.argv[1:]:
        await asyncio.start_server(serve, None, int(port))
    await asyncio.Future()

asyncio.run(main())
";

/// Begins the Python programs that report spans.
pub(in crate::suites) const INSTRUMENTATION: &str = "\
import sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.b3 import B3MultiFormat, B3SingleFormat
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

FORMATS = {
    'tracecontext': TraceContextTextMapPropagator(),
    'b3': B3SingleFormat(),
    'b3multi': B3MultiFormat(),
}

def tracer(service, collector):
    exporter = OTLPSpanExporter(endpoint=f'http://{collector}/v1/traces')
    provider = TracerProvider(resource=Resource.create({'service.name': service}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer('suite')
";

/// A server on the ports given as arguments, which reports a span of each request.
const TRACED: &str = "
import http.server, threading
TRACER = tracer('server', sys.argv[1])

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        context = None
        for format in FORMATS.values():
            context = format.extract(self.headers, context)
        with TRACER.start_as_current_span('handle', context=context, kind=SpanKind.SERVER):
            self.send_response(200)
            self.send_header('content-length', '0')
            self.end_headers()

    def log_message(self, *arguments):
        pass

for port in sys.argv[2:]:
    server = http.server.ThreadingHTTPServer(('', int(port)), Handler)
    threading.Thread(target=server.serve_forever).start()
";

/// Starts an application on its ports and waits until it listens.
pub(super) fn start(
    testbed: &Testbed,
    tools: &Tools,
    pod: &Pod,
    application: Application,
) -> anyhow::Result<Vec<Process>> {
    let processes = match application {
        Application::Http2 => vec![bench_server(testbed, pod, application, "http2")?],
        Application::Grpc => grpc(tools, pod)?,
        Application::WebSocket => vec![websocket(pod)?],
        Application::Web => vec![web(pod)?],
        Application::Sink => vec![bench_server(testbed, pod, application, "sink")?],
        Application::Traced => vec![traced(tools, pod)?],
    };
    for port in application.ports() {
        testbed.wait_ready(pod, ([127, 0, 0, 1], port).into(), None)?;
    }
    Ok(processes)
}

/// Starts a server of `mesh-bench serve`, selected by its flag.
fn bench_server(
    testbed: &Testbed,
    pod: &Pod,
    application: Application,
    what: &str,
) -> anyhow::Result<Process> {
    let mut command = pod.command(APPLICATION, &testbed.programs.bench)?;
    command.arg("serve");
    for port in application.ports() {
        command.arg(format!("--{what}=0.0.0.0:{port}"));
    }
    Process::start(what, &mut command)
}

/// Starts one server per port, since it accepts only one.
fn grpc(tools: &Tools, pod: &Pod) -> anyhow::Result<Vec<Process>> {
    let server = tools.grpc_server()?;
    let start = |port: u16| {
        let mut command = pod.command(APPLICATION, &server)?;
        command.args(["--port", &port.to_string()]);
        Process::start(&format!("grpc-{port}"), &mut command)
    };
    Application::Grpc.ports().map(start).collect()
}

fn websocket(pod: &Pod) -> anyhow::Result<Process> {
    let mut command = pod.command(APPLICATION, PYTHON)?;
    command.args(["-c", ECHO]);
    command.args(Application::WebSocket.ports().map(|port| port.to_string()));
    Process::start("websocket", &mut command)
}

fn traced(tools: &Tools, pod: &Pod) -> anyhow::Result<Process> {
    let mut command = pod.command(APPLICATION, tools.opentelemetry()?)?;
    command.arg("-c").arg([INSTRUMENTATION, TRACED].concat());
    command.arg(collector::address(pod));
    command.args(Application::Traced.ports().map(|port| port.to_string()));
    Process::start("traced", &mut command)
}

fn web(pod: &Pod) -> anyhow::Result<Process> {
    let directory = Path::new(DIRECTORY).join("web");
    fs::create_dir_all(&directory)?;
    fs::write(
        directory.join(LARGE_PATH.trim_start_matches('/')),
        vec![b'x'; LARGE],
    )?;
    let configuration = Path::new(DIRECTORY).join("web.conf");
    fs::write(&configuration, nginx(&directory))?;
    let mut command = pod.command(APPLICATION, "nginx")?;
    command.arg("-c").arg(&configuration);
    Process::start("web", &mut command)
}

/// nginx's send buffer, 80 KiB after the kernel doubles it. With autotuning, nginx would buffer
/// whole large responses for a proxy that reads the beginning quickly, and four thousand of these
/// exhaust the kernel's memory for sockets on a machine that runs client, proxies and server.
const UNSENT: &str = "40k";

/// Timeouts are as long as the proxies', so that the proxies' limits apply to slow clients. Large
/// header buffers are for thousands of ranges.
fn nginx(directory: &Path) -> String {
    let listen: String = Position::ALL
        .into_iter()
        .map(|position| {
            let port = Application::Web.port(position);
            format!("        listen {port} backlog=4096 sndbuf={UNSENT};\n")
        })
        .collect();
    format!(
        "daemon off; master_process off; user root; error_log stderr error; pid {DIRECTORY}/web.pid;
events {{ worker_connections 65536; }}
http {{
    access_log off; default_type text/plain; keepalive_timeout 1h; keepalive_requests 1000000000;
    large_client_header_buffers 8 64k; client_body_temp_path {DIRECTORY}/web-body; tcp_nodelay on;
    server {{
{listen}        location = / {{ return 200 \"hello\\n\"; }}
        location / {{ root {}; }}
    }}
}}
",
        directory.display()
    )
}
