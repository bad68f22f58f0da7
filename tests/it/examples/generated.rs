//! Generated code in the repository matches the proto.

use prost::Message;
use prost_types::FileDescriptorProto;
use rlaas::api::SERVICE;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use rlaas_testkit::process::Rlaas;

#[tokio::test]
async fn generated_go_code_matches_the_proto() {
    let code = include_str!("../../../clients/go/ratelimitv1/ratelimit.pb.go");
    let kept = FileDescriptorProto::decode(&*descriptor_in_go(code)).expect("a descriptor");
    let served = served_descriptor().await;
    assert_eq!(kept, served, "generate the code again, see clients/go/README.md");
}

/// Returns the descriptor that the server reflects, without comments.
async fn served_descriptor() -> FileDescriptorProto {
    let server = Rlaas::start(&[]);
    let mut client = ServerReflectionClient::new(server.channel().await);
    let message_request = Some(MessageRequest::FileContainingSymbol(SERVICE.to_owned()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    let mut answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .expect("an answer")
        .into_inner();
    let answer = answers.message().await.expect("an answer").expect("an answer");
    let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let mut file = FileDescriptorProto::decode(&*files.file_descriptor_proto[0]).expect("a file");
    file.source_code_info = None;
    file
}

/// Returns the descriptor that Go code has as a string literal of several lines.
pub(crate) fn descriptor_in_go(code: &str) -> Vec<u8> {
    let (_, text) = code.split_once("rawDesc = \"\" +\n").expect("a descriptor");
    let (text, _) = text.split_once("\n\n").expect("an end");
    let mut bytes = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches("\t\"").trim_end_matches(" +");
        bytes.extend(unescaped(line.strip_suffix('"').expect("a text")));
    }
    bytes
}

/// Returns the bytes of a string literal in Go.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().expect("an escape") {
                b'a' => 0x07,
                b'b' => 0x08,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 0x0b,
                b'f' => 0x0c,
                b'r' => b'\r',
                b'x' => 16 * digit(rest.next()) + digit(rest.next()),
                other => other,
            },
            other => other,
        });
    }
    bytes
}

fn digit(byte: Option<u8>) -> u8 {
    let digit = byte.and_then(|byte| char::from(byte).to_digit(16)).expect("a hex digit");
    u8::try_from(digit).expect("below 16")
}
