//! The orientation of a picture, wherever Pillow's `ImageOps.exif_transpose` finds it.

use std::io::Read;

use flate2::read::ZlibDecoder;
use image::ImageFormat;
use image::metadata::Orientation;

use super::kind::find;

/// The most that compressed text may take: EXIF is 64 KiB at most, and hexadecimal doubles it.
const LONGEST_TEXT: u64 = 1 << 20;

/// The orientation that the contents of a file state: by EXIF, else by XMP. What is damaged states none.
pub(super) fn orientation(contents: &[u8], format: ImageFormat) -> Orientation {
    let found = match format {
        ImageFormat::Jpeg => jpeg(contents),
        ImageFormat::Png => png(contents),
        ImageFormat::WebP => webp(contents),
        ImageFormat::Tiff => super::tiff::metadata(contents),
        _ => None,
    };
    found.and_then(Orientation::from_exif).unwrap_or(Orientation::NoTransforms)
}

fn jpeg(contents: &[u8]) -> Option<u8> {
    let mut xmp = None;
    for (marker, segment) in super::jpeg::segments(contents) {
        if marker != 0xE1 {
            continue;
        }
        if let Some(exif) = segment.strip_prefix(b"Exif\0\0") {
            if let Some(found) = exif_orientation(exif) {
                return Some(found);
            }
        } else if let Some(packet) = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
            xmp = xmp.or_else(|| xmp_orientation(packet));
        }
    }
    xmp
}

fn png(contents: &[u8]) -> Option<u8> {
    let (mut exif, mut profile, mut xmp) = (None, None, None);
    let mut rest = contents.get(8..)?;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let (Some(kind), Some(data)) = (after.get(..4), after.get(4..).and_then(|rest| rest.get(..length))) else {
            break;
        };
        match kind {
            b"eXIf" => exif = exif.or_else(|| exif_orientation(data)),
            b"tEXt" | b"zTXt" | b"iTXt" => {
                let key = data.split(|&byte| byte == 0).next().unwrap_or_default();
                if key == b"Raw profile type exif" {
                    profile = profile.or_else(|| exif_orientation(&raw_profile(&text(kind, data)?)?));
                } else if key == b"XML:com.adobe.xmp" {
                    xmp = xmp.or_else(|| xmp_orientation(&text(kind, data)?));
                }
            }
            _ => {}
        }
        let Some(next) = after.get(8 + length..) else { break };
        rest = next;
    }
    exif.or(profile).or(xmp)
}

/// The text of a PNG chunk, inflated if need be.
fn text(kind: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let at = |from: usize| Some(from + data.get(from..)?.iter().position(|&byte| byte == 0)?);
    let key = at(0)?;
    let (compressed, start) = match kind {
        b"tEXt" => (false, key + 1),
        b"zTXt" => (true, key + 2),
        // Compression flag and method, language, translated keyword.
        _ => (data.get(key + 1) == Some(&1), at(at(key + 3)? + 1)? + 1),
    };
    let text = data.get(start..)?;
    if !compressed {
        return Some(text.to_vec());
    }
    let mut inflated = Vec::new();
    ZlibDecoder::new(text).take(LONGEST_TEXT).read_to_end(&mut inflated).ok()?;
    Some(inflated)
}

/// The bytes of a profile as `ImageMagick` writes it: a line break, a name, a length, then hexadecimal digits.
fn raw_profile(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.split(|&byte| byte == b'\n').skip(3);
    let digits: Vec<u8> = lines.flatten().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_chunks().0.iter().map(byte).collect()
}

fn webp(contents: &[u8]) -> Option<u8> {
    let (mut exif, mut xmp) = (None, None);
    let mut rest = contents.get(12..)?;
    while let (Some(kind), Some(length)) = (rest.get(..4), rest.get(4..8)) {
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let Some(data) = rest.get(8..).and_then(|rest| rest.get(..length)) else { break };
        match kind {
            b"EXIF" => exif = exif.or_else(|| exif_orientation(data)),
            b"XMP " => xmp = xmp.or_else(|| xmp_orientation(data)),
            _ => {}
        }
        let Some(next) = rest.get(8 + length + length % 2..) else { break };
        rest = next;
    }
    exif.or(xmp)
}

/// The orientation in EXIF data: a TIFF file of its own, which some writers put `Exif\0\0` in front of.
fn exif_orientation(exif: &[u8]) -> Option<u8> {
    tiff_tag(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif), 0x0112).and_then(exif_value)
}

pub(super) fn exif_value(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|value| (1..=8).contains(value))
}

/// The value of a tag of one number in the first directory of a TIFF file. EXIF says SHORT; some phones write LONG, and Pillow
/// takes signed bytes, fractions and floating-point numbers too.
fn tiff_tag(tiff: &[u8], wanted: u16) -> Option<u32> {
    const SHORT: [u16; 2] = [3, 8];
    const LONG: [u16; 3] = [4, 9, 13];
    let big_endian = match tiff.get(..2)? {
        b"II" => false,
        b"MM" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..)?.first_chunk()?;
        Some(if big_endian { u16::from_be_bytes(*bytes) } else { u16::from_le_bytes(*bytes) })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..)?.first_chunk()?;
        Some(if big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) })
    };
    // BigTIFF has wider offsets and counts.
    let (directory, header, entry, count) = match short(2)? {
        43 => (long(if big_endian { 12 } else { 8 })? as usize, 8, 20, 12),
        _ => (long(4)? as usize, 2, 12, 8),
    };
    let entries = short(if header == 8 && big_endian { directory + 6 } else { directory })?;
    (0..usize::from(entries)).map(|i| directory + header + i * entry).find_map(|at| {
        let kind = short(at + 2)?;
        match short(at)? == wanted {
            true if SHORT.contains(&kind) => short(at + count).map(u32::from),
            true if LONG.contains(&kind) => long(at + count),
            true if kind == 6 => tiff.get(at + count).map(|&value| u32::from(value)),
            true if kind == 5 || kind == 10 => {
                let at = long(at + count)? as usize;
                let (value, of) = (long(at)?, long(at.checked_add(4)?)?);
                (value.checked_rem(of)? == 0).then(|| value / of)
            }
            true if kind == 11 => {
                long(at + count).map(f32::from_bits).filter(|value| value.fract() == 0.0).map(|value| value as u32)
            }
            _ => None,
        }
    })
}

/// The orientation in an XMP packet, as attribute or element.
pub(super) fn xmp_orientation(mut packet: &[u8]) -> Option<u8> {
    const NAME: &[u8] = b"tiff:Orientation";
    loop {
        packet = packet.get(find(packet, NAME)? + NAME.len()..)?;
        let value = packet.strip_prefix(b"=\"").or(packet.strip_prefix(b">"));
        if let Some(digit) = value.and_then(|value| value.first()).filter(|digit| digit.is_ascii_digit()) {
            return exif_value(u32::from(digit - b'0'));
        }
    }
}
