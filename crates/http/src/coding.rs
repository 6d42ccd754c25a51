//! Content codings (RFC 9110, 8.4): compresses responses and decodes request bodies.
//!
//! | response | compressed |
//! |---|---|
//! | 200 to a read of definitions or configs, from `COMPRESSED_BYTES_MIN` up to `REWRITTEN_BYTES_MAX` | yes |
//! | configs of a definition that has secret fields, for every client | no |
//! | a write, an error, a backup, a watch, a page that is streamed | no |
//!
//! The length of compressed text reveals repetitions. A client that sees the lengths of responses, and can place text
//! of its own beside a secret, can guess the secret piece by piece (BREACH). So responses that may hold secrets are
//! never compressed, nor are those that repeat the request (writes, errors).
//!
//! An entity tag names the version of a record and not its bytes, so it is the same in every coding. No response is
//! cached or sent in ranges, so no client mixes the bytes of two codings.
//!
//! **Invariants:** decompressing a response gives the bytes of the plain one. A decoded body has the same limit as a
//! plain body, and its memory is reserved while it grows.

use std::io::{self, Read, Write as _};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use http::{HeaderMap, HeaderValue, header};

use super::{
    reply::{Detail, Problem},
    rewriting::BufferedResponse,
};
use concord_model::{
    error::Invalid,
    limits::{BODY_COPIES, DECODE_WINDOW_BYTES},
};
use concord_service::{Refusal, Service, memory_budget::Reservation};

/// The codings of request bodies, for the header `Accept-Encoding` of a rejection.
pub(super) const DECODED: HeaderValue = HeaderValue::from_static("gzip, zstd");

/// Bytes of a response up to which it is compressed on the threads that serve requests: less than a millisecond.
const INLINE_BYTES_MAX: usize = 16 << 10;
/// Bytes that are decoded at once.
const CHUNK_BYTES: usize = 64 << 10;
/// The level of gzip: half the time of the default, and a tenth more bytes.
const GZIP_LEVEL: u32 = 4;
/// The level of zstd: its default.
const ZSTD_LEVEL: i32 = 3;
/// The level of brotli: the highest above which a text takes several times as long.
const BROTLI_LEVEL: i32 = 4;
/// The window of brotli, as a power of two.
const BROTLI_WINDOW: i32 = 20;

/// How a response is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Brotli,
    Zstd,
}

/// How the body of a request is compressed. Not brotli, whose window may take 16 MiB whatever its body has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyCoding {
    Gzip,
    Zstd,
}

impl Coding {
    /// The coding that a client likes best; of equals the one that takes the least time. `None` for none.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut best: Option<(u16, Self)> = None;
        for coding in [Self::Zstd, Self::Brotli, Self::Gzip] {
            let weight = weight(headers, coding.name());
            if weight > best.map_or(0, |(best, _)| best) {
                best = Some((weight, coding));
            }
        }
        // Plain is acceptable unless it is excluded, and is sent where it is liked better.
        let plain = weight_of(headers, "identity").unwrap_or(0);
        best.filter(|(weight, _)| *weight >= plain).map(|(_, coding)| coding)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    fn encode(self, text: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip => {
                let mut encoder =
                    GzEncoder::new(Vec::with_capacity(text.len() / 4), Compression::new(GZIP_LEVEL));
                encoder.write_all(text)?;
                encoder.finish()
            }
            Self::Brotli => {
                let params = brotli::enc::BrotliEncoderParams {
                    quality: BROTLI_LEVEL,
                    lgwin: BROTLI_WINDOW,
                    size_hint: text.len(),
                    ..Default::default()
                };
                let mut out = Vec::with_capacity(text.len() / 4);
                brotli::BrotliCompress(&mut &*text, &mut out, &params)?;
                Ok(out)
            }
            Self::Zstd => zstd::bulk::compress(text, ZSTD_LEVEL),
        }
    }
}

/// The weight of a coding in thousandths; 0 when it is not acceptable.
fn weight(headers: &HeaderMap, name: &str) -> u16 {
    weight_of(headers, name).or_else(|| weight_of(headers, "*")).unwrap_or(0)
}

/// The weight that is stated for a name.
fn weight_of(headers: &HeaderMap, name: &str) -> Option<u16> {
    let texts = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut elements = texts.flat_map(|text| text.split(','));
    elements.find_map(|element| {
        let (coding, weight) = element.split_once(';').unwrap_or((element, ""));
        let coding = coding.trim();
        let is_named =
            coding.eq_ignore_ascii_case(name) || (name == "gzip" && coding.eq_ignore_ascii_case("x-gzip"));
        is_named.then(|| thousandths(weight.trim()))
    })
}

/// A weight `q=0.5` in thousandths; 0 for one that is malformed.
pub(super) fn thousandths(text: &str) -> u16 {
    if text.is_empty() {
        return 1000;
    }
    let Some(number) = text.strip_prefix("q=").or_else(|| text.strip_prefix("Q=")) else { return 0 };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "1" if is_number && fraction.bytes().all(|byte| byte == b'0') => 1000,
        "0" if is_number => format!("{fraction:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

/// Compresses a response that its handler has marked. Where that can't be done, it is sent as it is.
pub(super) async fn encoded(mut response: Response, service: &Service) -> Response {
    let Some(coding) = response.extensions_mut().remove::<Coding>() else { return response };
    let held = match BufferedResponse::of(response, service).await {
        Ok(held) => held,
        Err(response) => return response,
    };
    let encode = move |plain: &[u8]| coding.encode(plain);
    let (mut parts, plain, packed) = held.rewritten(service, INLINE_BYTES_MAX, encode).await;
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    match packed {
        Some(Ok(packed)) if packed.len() < plain.len() => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            parts.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(packed))
        }
        Some(_) | None => Response::from_parts(parts, Body::from(plain)),
    }
}

/// How the body of a request is encoded; `None` when it is not.
///
/// # Errors
/// When it is encoded in another way, or several times.
pub(super) fn of_body(headers: &HeaderMap) -> Result<Option<BodyCoding>, Problem> {
    let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let name = value.as_bytes().trim_ascii();
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    match values.next() {
        None if name.is_empty() || is("identity") => Ok(None),
        None if is("gzip") || is("x-gzip") => Ok(Some(BodyCoding::Gzip)),
        None if is("zstd") => Ok(Some(BodyCoding::Zstd)),
        None | Some(_) => Err(Problem::UnsupportedCoding),
    }
}

/// Why a body was not decoded.
enum NotDecoded {
    Malformed,
    TooLarge,
    Refused(Refusal),
}

/// Decodes a body to at most `limit` bytes, which are reserved as they come.
pub(super) async fn decoded(
    service: &Service,
    coding: BodyCoding,
    body: Bytes,
    limit: usize,
    mut held: Reservation,
) -> Result<(Bytes, Reservation), Problem> {
    if body.is_empty() {
        return Ok((body, held));
    }
    let work = move || {
        let made = decode(coding, &body, limit, &mut held);
        (made, held)
    };
    let (made, held) = service.cx.run_long(work).await?;
    match made {
        Ok(decoded) => Ok((decoded.into(), held)),
        Err(NotDecoded::Malformed) => {
            let msg = "the body does not have the coding that `content-encoding` names";
            let detail = Detail { loc: vec!["body".into()], msg: msg.into(), kind: "json_invalid" };
            Err(Problem::Shape(vec![detail]))
        }
        Err(NotDecoded::TooLarge) => {
            let text = format!("the decoded body is larger than {limit} bytes");
            Err(Refusal::Invalid(Invalid::TooLarge(text)).into())
        }
        Err(NotDecoded::Refused(refusal)) => Err(refusal.into()),
    }
}

fn decode(
    coding: BodyCoding,
    body: &[u8],
    limit: usize,
    held: &mut Reservation,
) -> Result<Vec<u8>, NotDecoded> {
    let malformed = |_: io::Error| NotDecoded::Malformed;
    let mut decoder: Box<dyn Read + '_> = match coding {
        BodyCoding::Gzip => Box::new(MultiGzDecoder::new(body)),
        BodyCoding::Zstd => {
            held.grow(DECODE_WINDOW_BYTES).map_err(NotDecoded::Refused)?;
            let mut decoder = zstd::stream::read::Decoder::new(body).map_err(malformed)?;
            decoder.window_log_max(DECODE_WINDOW_BYTES.ilog2()).map_err(malformed)?;
            Box::new(decoder)
        }
    };
    let (mut all, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    loop {
        let read = decoder.read(&mut chunk).map_err(malformed)?;
        let Some(part) = chunk.get(..read).filter(|part| !part.is_empty()) else { return Ok(all) };
        if part.len() > limit.saturating_sub(all.len()) {
            return Err(NotDecoded::TooLarge);
        }
        held.grow(part.len() as u64 * BODY_COPIES).map_err(NotDecoded::Refused)?;
        all.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::limits::Limits;
    use concord_service::testing::service;

    fn accepting(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn unpacked(coding: Coding, packed: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        match coding {
            Coding::Gzip => MultiGzDecoder::new(packed).read_to_end(&mut text).map(drop),
            Coding::Brotli => brotli::BrotliDecompress(&mut &*packed, &mut text),
            Coding::Zstd => zstd::stream::copy_decode(packed, &mut text),
        }
        .unwrap();
        text
    }

    #[test]
    fn the_coding_is_the_one_that_the_caller_likes_best() {
        for (values, expected) in [
            (&[][..], None),
            (&[""], None),
            (&["gzip"], Some(Coding::Gzip)),
            (&["x-gzip"], Some(Coding::Gzip)),
            (&["gzip, deflate, br, zstd"], Some(Coding::Zstd)),
            (&["gzip, deflate, br"], Some(Coding::Brotli)),
            (&["gzip;q=1.0, br;q=0.5", "zstd;q=0"], Some(Coding::Gzip)),
            (&["*"], Some(Coding::Zstd)),
            (&["*;q=0.1, zstd;q=0"], Some(Coding::Brotli)),
            (&["identity, gzip;q=0.5"], None),
            (&["gzip;q=0"], None),
            (&["gzip;q=0.000, br;q=2, zstd;q=x"], None),
            (&["deflate"], None),
        ] {
            assert_eq!(Coding::accepted(&accepting(values)), expected, "{values:?}");
        }
    }

    #[test]
    fn what_is_compressed_is_what_was_there() {
        let text = "{\"a\":[1,2,3]}".repeat(5000);
        for coding in [Coding::Gzip, Coding::Brotli, Coding::Zstd] {
            let packed = coding.encode(text.as_bytes()).unwrap();
            assert!(packed.len() < text.len() / 10, "{coding:?}: {}", packed.len());
            assert_eq!(unpacked(coding, &packed), text.as_bytes());
        }
    }

    #[tokio::test]
    async fn a_body_is_decoded_up_to_the_limit_of_bodies() {
        let directory = tempfile::tempdir().unwrap();
        let service = service(directory.path(), Limits::default());
        let gzip = |text: &[u8]| Bytes::from(Coding::Gzip.encode(text).unwrap());
        let zstd = |text: &[u8]| Bytes::from(Coding::Zstd.encode(text).unwrap());
        let decode = async |coding, body| {
            let held = service.cx.reservation(concord_service::Share::Callers);
            decoded(&service, coding, body, 1 << 20, held).await
        };
        let bomb = vec![b' '; 64 << 20];
        for (coding, pack) in
            [(BodyCoding::Gzip, &gzip as &dyn Fn(&[u8]) -> Bytes), (BodyCoding::Zstd, &zstd)]
        {
            let (whole, held) = decode(coding, pack(b"{\"a\":1}")).await.unwrap();
            assert_eq!(&whole[..], b"{\"a\":1}");
            assert!(held.bytes() >= 7);
            let most = vec![b'x'; 1 << 20];
            assert_eq!(decode(coding, pack(&most)).await.unwrap().0.len(), most.len());
            let too_large = decode(coding, pack(&bomb)).await.unwrap_err();
            assert!(matches!(too_large, Problem::Refused(Refusal::Invalid(Invalid::TooLarge(_)), None)));
            for wrong in [Bytes::from_static(b"{}"), pack(&most).slice(..20)] {
                assert!(matches!(decode(coding, wrong).await.unwrap_err(), Problem::Shape(_)), "{coding:?}");
            }
        }
        // A frame that asks for a window of 128 MiB.
        let wide = Bytes::from_static(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0x01, 0x00, 0x00]);
        assert!(matches!(decode(BodyCoding::Zstd, wide).await.unwrap_err(), Problem::Shape(_)));
    }
}
