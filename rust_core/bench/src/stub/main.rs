//! A stub of a model's server for the benchmarks: chat completions over HTTP/1.1 with keep-alive, in one thread.
//!
//! `trunkline-stub [latency=MS] [p99=MS] [tokens=N] [top=N] [tls=CERTIFICATE,KEY]` prints its base URL, then answers every POST:
//!
//! * The model's name says how many turns a conversation has: `stub-20` calls a tool 19 times, then answers; `stub`
//!   calls once. A turn is told by the observations in the request.
//! * A request with `"logprobs":true` gets a reply of `tokens` tokens with `top` alternatives each and their bytes.
//! * `n` is honoured.
//! * An answer is held back for `latency` milliseconds; with `p99`, for a lognormal time with that median and that 99th
//!   percentile.
//! * With `tls`, two files in PEM, it speaks TLS.
//!
//! For every line on its standard input it prints what came since the last one, as JSON: see [`book::Book::report`].
//! It ends with its input.

mod book;
mod latency;
mod replies;
mod request;
mod serve;
mod settings;
mod tls;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::rc::Rc;

use tokio::net::TcpSocket;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::LocalSet;

use serve::Stub;
use settings::Settings;

/// Connections that may wait to be accepted; the system's own limit holds where it is lower.
const BACKLOG: u32 = 1 << 15;

fn main() -> ExitCode {
    let done = Settings::read(std::env::args().skip(1)).and_then(|settings| {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        LocalSet::new().block_on(&runtime, run(&settings, lines()))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Serve until the last line was answered.
async fn run(settings: &Settings, mut asked: UnboundedReceiver<()>) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 1], 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    let tls = settings.tls.as_ref().map(|(chain, key)| tls::acceptor(chain, key)).transpose()?;
    let mut out = std::io::stdout();
    writeln!(out, "http{}://{}/v1", if tls.is_some() { "s" } else { "" }, listener.local_addr()?)?;
    out.flush()?;
    let stub = Rc::new(Stub::new(settings));
    tokio::task::spawn_local(Rc::clone(&stub).accept(listener, tls));
    while asked.recv().await.is_some() {
        writeln!(out, "{}", stub.book.borrow_mut().report())?;
        out.flush()?;
    }
    Ok(())
}

/// A message for every line of the standard input, read in a thread of its own; closed when the input ends.
fn lines() -> UnboundedReceiver<()> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        lines.map_while(Result::ok).take_while(|_| sender.send(()).is_ok()).count()
    });
    receiver
}
