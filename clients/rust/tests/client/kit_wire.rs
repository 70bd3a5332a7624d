//! The wire scripts of the kit: this test plays the server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bsd_client::{Client, Config};
use serde_json::Value;

use crate::kit::{Variables, bytes_or_none, check, scripts};
use crate::kit_calls::call;

/// What the peer is to see in a step, and to answer.
struct Exchange {
    sends: Vec<u8>,
    reply: Vec<u8>,
    closes: bool,
}

/// The server's side of a script.
struct Peer {
    listener: TcpListener,
    stream: Option<TcpStream>,
    input: Vec<u8>,
    capabilities: Vec<u8>,
}

const ASK: &[u8] = b"capabilities\r\n";

impl Peer {
    /// Take in what has come: answer questions for the capabilities, keep the rest.
    fn look(&mut self) {
        let Some(stream) = &mut self.stream else {
            if let Ok((stream, _)) = self.listener.accept() {
                stream
                    .set_read_timeout(Some(Duration::from_millis(2)))
                    .unwrap();
                self.stream = Some(stream);
            } else {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            return;
        };
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => self.stream = None,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => self.stream = None,
        }
        while self.input.starts_with(ASK) {
            self.input.drain(..ASK.len());
            let answer = self.capabilities.clone();
            self.say(&answer);
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        if let Some(stream) = &mut self.stream {
            _ = stream.write_all(bytes);
        }
    }

    /// Play one step until the call has ended: whether the client sent what it must, and nothing more.
    fn play(&mut self, exchange: &Exchange, call_ended: &AtomicBool) -> Result<(), String> {
        let mut is_answered = exchange.sends.is_empty();
        loop {
            let has_ended = call_ended.load(Ordering::SeqCst);
            self.look();
            if !is_answered && self.input.len() >= exchange.sends.len() {
                let sent: Vec<u8> = self.input.drain(..exchange.sends.len()).collect();
                if sent != exchange.sends {
                    self.stream = None;
                    return Err(format!(
                        "the client sent {:?}",
                        String::from_utf8_lossy(&sent)
                    ));
                }
                self.say(&exchange.reply);
                is_answered = true;
                if exchange.closes {
                    self.stream = None;
                }
            }
            if has_ended {
                break;
            }
        }
        let left = String::from_utf8_lossy(&self.input).into_owned();
        match (is_answered, self.input.is_empty()) {
            (true, true) => Ok(()),
            _ => Err(format!("the client left {left:?}, answered: {is_answered}")),
        }
    }
}

fn serve(
    mut peer: Peer,
    steps: &Receiver<(Exchange, &AtomicBool)>,
    ends: &Sender<Result<(), String>>,
) {
    while let Ok((exchange, call_ended)) = steps.recv() {
        let played = peer.play(&exchange, call_ended);
        // The call must come to its end, also after a mistake.
        while !call_ended.load(Ordering::SeqCst) {
            peer.stream = None;
            std::thread::park_timeout(Duration::from_millis(1));
        }
        _ = ends.send(played);
    }
}

fn capabilities(words: &Value) -> Vec<u8> {
    let Some(words) = words.as_array() else {
        return b"UNKNOWN_COMMAND\r\n".to_vec();
    };
    let mut document = if words.is_empty() {
        "--- []\n"
    } else {
        "---\n"
    }
    .to_owned();
    for word in words {
        document += &format!("- {}\n", word.as_str().unwrap());
    }
    format!("OK {}\r\n{document}\r\n", document.len()).into_bytes()
}

fn run(name: &str, script: &Value) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config: Config = listener.local_addr().unwrap().to_string().parse().unwrap();
    listener.set_nonblocking(true).unwrap();
    let peer = Peer {
        listener,
        stream: None,
        input: Vec::new(),
        capabilities: capabilities(&script["words"]),
    };
    let config = config.repeats(false);
    let mut client = Client::new(config);
    let mut variables = Variables::new(name);
    let steps = script["steps"].as_array().unwrap();
    let ended: Vec<AtomicBool> = steps.iter().map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        let (step_sender, step_receiver) = channel();
        let (end_sender, end_receiver) = channel();
        scope.spawn(move || serve(peer, &step_receiver, &end_sender));
        for (number, (step, ended)) in steps.iter().zip(&ended).enumerate() {
            let exchange = Exchange {
                sends: bytes_or_none(&variables.fill(&step["sends"])),
                reply: bytes_or_none(&variables.fill(&step["reply"])),
                closes: step["closes"] == true,
            };
            step_sender.send((exchange, ended)).unwrap();
            let timeout = step["timeout"].as_f64().unwrap_or(10.0);
            client.set_timeout(Duration::from_secs_f64(timeout));
            let args = variables.fill(&step["args"]);
            let args = args.as_object().cloned().unwrap_or_default();
            let name_of_call = step["call"].as_str().unwrap();
            let result = call(&mut client, name_of_call, &args, None);
            ended.store(true, Ordering::SeqCst);
            let sent = end_receiver.recv().unwrap();
            let checked = sent.and_then(|()| check(step, &result, &variables));
            if let Err(why) = checked {
                panic!("{name}, step {}: {why}; {result:?}\n{step}", number + 1);
            }
            if let Ok(result) = &result {
                variables.save(step, result);
            }
        }
    });
}

#[test]
fn the_client_sends_what_the_wire_scripts_say_and_tells_errors_apart() {
    let scripts = scripts("wire");
    for (name, script) in &scripts {
        run(name, script);
    }
    println!("{} wire scripts of the kit were run", scripts.len());
}
