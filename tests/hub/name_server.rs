//! A name server that says what it is told, over UDP and TCP.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// What fits a datagram of a server that takes no chances.
const DATAGRAM_BYTES: usize = 512;

pub struct NameServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<BTreeMap<String, Vec<Record>>>,
    fails: AtomicBool,
    asked: AtomicUsize,
}

/// An address of a name.
pub fn a(name: &str, ip: &str, ttl: u32) -> Record {
    Record::from_rdata(Name::from_ascii(name).unwrap(), ttl, RData::from(ip.parse::<Ipv4Addr>().unwrap()))
}

/// A target of a service.
pub fn srv(name: &str, target: &str, port: u16) -> Record {
    let target = SRV::new(0, 0, port, Name::from_ascii(target).unwrap());
    Record::from_rdata(Name::from_ascii(name).unwrap(), 0, RData::SRV(target))
}

impl NameServer {
    pub async fn start() -> NameServer {
        let shared = Arc::new(Shared::default());
        loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = tcp.local_addr().unwrap();
            // Somebody else may have this port for UDP.
            let Ok(udp) = UdpSocket::bind(address).await else { continue };
            tokio::spawn(serve_udp(udp, Arc::clone(&shared)));
            tokio::spawn(serve_tcp(tcp, Arc::clone(&shared)));
            return NameServer { address, shared };
        }
    }

    /// A name with records, or none.
    pub fn set(&self, name: &str, records: Vec<Record>) {
        self.shared.records.lock().unwrap().insert(name.to_owned(), records);
    }

    /// Whether every question is answered with SERVFAIL.
    pub fn fail(&self, fails: bool) {
        self.shared.fails.store(fails, Ordering::Relaxed);
    }

    /// Questions so far.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn answer(&self, question: &[u8]) -> Message {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let question = Message::from_vec(question).unwrap();
        let query = question.queries[0].clone();
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        if self.fails.load(Ordering::Relaxed) {
            answer.metadata.response_code = ResponseCode::ServFail;
            return answer;
        }
        match self.records.lock().unwrap().get(&query.name().to_ascii().to_ascii_lowercase()) {
            None => answer.metadata.response_code = ResponseCode::NXDomain,
            Some(records) => {
                let of_kind = records.iter().filter(|record| record.record_type() == query.query_type());
                answer.add_answers(of_kind.cloned());
            }
        }
        answer
    }
}

async fn serve_udp(socket: UdpSocket, shared: Arc<Shared>) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        let mut answer = shared.answer(&buffer[..length]);
        if answer.to_vec().unwrap().len() > DATAGRAM_BYTES {
            answer.answers.clear();
            answer.metadata.truncation = true;
        }
        socket.send_to(&answer.to_vec().unwrap(), peer).await.unwrap();
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut question = vec![0; usize::from(length)];
                stream.read_exact(&mut question).await.unwrap();
                let answer = shared.answer(&question).to_vec().unwrap();
                let length = u16::try_from(answer.len()).unwrap();
                if stream.write_u16(length).await.is_err() || stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
    }
}
