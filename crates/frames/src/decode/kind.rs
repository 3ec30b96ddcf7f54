//! The kind of a file that is not a picture of a format that is read here, and what the user can do about it.

const CONVERT: &str = "convert it to JPEG or PNG";
pub(super) const DEVELOP: &str = "convert it to JPEG or PNG with a raw converter, such as darktable or RawTherapee";
const DOWNLOAD: &str = "the download went wrong, and the text may say why: fetch the picture again";
const EXTRACT: &str = "extract its frames as pictures first";
const UNPACK: &str = "unpack it first";
const FETCH: &str = "fetch the files with `git lfs pull`";
const READ_TEXT: &str = "open it in a text editor to see what it is, then get the picture again";
const COPY: &str = "the file was never written completely: copy or download it again";

/// Where a signature lies, the signature, the kind of file that it stands for, and what to do about it.
///
/// The values are those of the formats' own specifications.
const SIGNATURES: &[(usize, &[u8], &str, &str)] = &[
    // Pictures.
    (0, b"\xff\x0a", "a JPEG XL picture", CONVERT),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture", CONVERT),
    (0, b"\xff\x4f\xff\x51", "a JPEG 2000 picture", CONVERT),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 picture", CONVERT),
    (0, b"II\xbc\x01", "a JPEG XR picture", CONVERT),
    (0, b"GIF87a", "a GIF picture", CONVERT),
    (0, b"GIF89a", "a GIF picture", CONVERT),
    (0, b"8BPS", "a Photoshop file (PSD)", CONVERT),
    (0, b"v/1\x01", "an OpenEXR picture", CONVERT),
    (0, b"#?RADIANCE", "a Radiance HDR picture", CONVERT),
    (0, b"#?RGBE", "a Radiance HDR picture", CONVERT),
    (0, b"PF\n", "a floating-point picture (PFM)", CONVERT),
    (0, b"Pf\n", "a floating-point picture (PFM)", CONVERT),
    (0, b"qoif", "a QOI picture", CONVERT),
    (0, b"DDS ", "a DDS texture", CONVERT),
    (0, b"\0\0\x01\0\x01\0", "an icon (ICO)", CONVERT),
    (0, b"SIMPLE  =", "a FITS picture", CONVERT),
    // Raw pictures of cameras that are not TIFF files by their header.
    (0, b"FUJIFILMCCD-RAW", "a camera's raw picture (Fujifilm RAF)", DEVELOP),
    (0, b"IIRO", "a camera's raw picture (Olympus ORF)", DEVELOP),
    (0, b"IIRS", "a camera's raw picture (Olympus ORF)", DEVELOP),
    (0, b"MMOR", "a camera's raw picture (Olympus ORF)", DEVELOP),
    (0, b"IIU\0", "a camera's raw picture (Panasonic RW2)", DEVELOP),
    (0, b"II\x1a\0\0\0HEAPCCDR", "a camera's raw picture (Canon CRW)", DEVELOP),
    (0, b"FOVb", "a camera's raw picture (Sigma X3F)", DEVELOP),
    (0, b"\0MRM", "a camera's raw picture (Minolta MRW)", DEVELOP),
    // Videos.
    (0, b"\x1a\x45\xdf\xa3", "a video (Matroska or WebM)", EXTRACT),
    (8, b"AVI ", "a video (AVI)", EXTRACT),
    (4, b"moov", "a video (QuickTime)", EXTRACT),
    (4, b"mdat", "a video (QuickTime)", EXTRACT),
    (4, b"wide", "a video (QuickTime)", EXTRACT),
    (0, b"\0\0\x01\xba", "a video (MPEG program stream)", EXTRACT),
    (0, b"\0\0\x01\xb3", "a video (MPEG)", EXTRACT),
    (0, b"\0\0\0\x01\x67", "a video (H.264)", EXTRACT),
    (0, b"\0\0\0\x01\x40\x01", "a video (H.265)", EXTRACT),
    (0, b"FLV\x01", "a video (FLV)", EXTRACT),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a video (WMV)", EXTRACT),
    (0, b"OggS", "a video or sound (Ogg)", EXTRACT),
    (0, b"YUV4MPEG2 ", "a video (Y4M)", EXTRACT),
    // Archives and compressed files.
    (0, b"PK\x03\x04", "a ZIP archive", UNPACK),
    (0, b"PK\x05\x06", "a ZIP archive", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"\x1f\x8b", "a file compressed with gzip", UNPACK),
    (0, b"\xfd7zXZ\0", "a file compressed with xz", UNPACK),
    (0, b"BZh", "a file compressed with bzip2", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a file compressed with Zstandard", UNPACK),
    // Other data.
    (0, b"%PDF", "a PDF document", CONVERT),
    (0, b"\x93NUMPY", "a NumPy array", CONVERT),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT),
];

/// The kind of a file and what to do about it; `None` if the kind is not known.
pub(super) fn other_kind(contents: &[u8]) -> Option<(&'static str, &'static str)> {
    let signature = SIGNATURES.iter().find(|&&(at, bytes, ..)| contents.get(at..at + bytes.len()) == Some(bytes));
    signature
        .map(|&(.., kind, advice)| (kind, advice))
        .or_else(|| media_file(contents))
        .or_else(|| is_transport_stream(contents).then_some(("a video (MPEG transport stream)", EXTRACT)))
        .or_else(|| contents.iter().all(|&byte| byte == 0).then_some(("made of zero bytes only", COPY)))
        .or_else(|| text(contents))
}

/// A file of the ISO base media format (ISO/IEC 14496-12), by the brands in its first box: pictures and videos share it.
///
/// The brands `mif1` and `msf1` say only that there are pictures; which kind, a compatible brand says.
fn media_file(contents: &[u8]) -> Option<(&'static str, &'static str)> {
    let (size, rest) = contents.split_first_chunk::<4>()?;
    let rest = rest.strip_prefix(b"ftyp")?;
    let box_rest = rest.get(..(u32::from_be_bytes(*size) as usize).saturating_sub(8)).unwrap_or(rest);
    // The major brand, its version, the compatible brands.
    let brands = box_rest.as_chunks::<4>().0;
    let (major, compatible) = (brands.first()?, brands.get(2..).unwrap_or_default());
    let is_one = |known: &[&[u8; 4]]| {
        known.contains(&major)
            || matches!(major, b"mif1" | b"msf1" | b"miaf") && compatible.iter().any(|brand| known.contains(&brand))
    };
    Some(if is_one(&[b"avif", b"avis"]) {
        ("an AVIF picture", CONVERT)
    } else if is_one(&[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"]) {
        ("a HEIC picture, as iPhones take them", CONVERT)
    } else if is_one(&[b"mif1", b"msf1", b"miaf"]) {
        ("a HEIF picture", CONVERT)
    } else if major == b"crx " {
        ("a camera's raw picture (Canon CR3)", DEVELOP)
    } else if major == b"qt  " {
        ("a video (QuickTime)", EXTRACT)
    } else {
        ("a video (MP4)", EXTRACT)
    })
}

/// Packets of 188 bytes (ISO/IEC 13818-1), of cameras with four bytes of time before each. Every packet begins with 0x47.
fn is_transport_stream(contents: &[u8]) -> bool {
    const SYNC: u8 = 0x47;
    [(0, 188), (4, 192)].into_iter().any(|(start, packet)| {
        let mut starts = contents.iter().skip(start).step_by(packet).take(3);
        contents.len() > start + packet && starts.all(|&byte| byte == SYNC)
    })
}

/// The longest start of a text that is looked at.
const TEXT: usize = 512;

/// The kind of a text.
fn text(contents: &[u8]) -> Option<(&'static str, &'static str)> {
    const SPACE: [u8; 4] = [b' ', b'\n', b'\r', b'\t'];
    let start = &contents[..contents.len().min(TEXT)];
    // A netpbm picture begins as a text and may go on in any bytes.
    if let [b'P', b'1'..=b'7', space, ..] = start
        && SPACE.contains(space)
    {
        return Some(("a PNM picture (PBM, PGM, PPM, PAM)", CONVERT));
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start().to_ascii_lowercase();
    let starts = |words: &[&[u8]]| words.iter().any(|word| text.starts_with(word));
    let is_xml = starts(&[b"<?xml"]);
    let is_html = starts(&[b"<!doctype html", b"<html", b"<head", b"<body"]);
    Some(if starts(&[b"version https://git-lfs"]) {
        ("a Git LFS pointer, not the picture itself", FETCH)
    } else if starts(&[b"<svg"]) || is_xml && find(&text, b"<svg").is_some() {
        ("an SVG drawing", CONVERT)
    } else if is_html || is_xml && find(&text, b"<html").is_some() {
        ("a web page (HTML)", DOWNLOAD)
    } else if is_xml {
        ("an XML text", DOWNLOAD)
    } else if !is_text(start) {
        return None;
    } else if starts(&[b"{", b"["]) {
        ("a JSON text", DOWNLOAD)
    } else {
        ("a text", READ_TEXT)
    })
}

/// Whether these are printable characters in UTF-8. The last character may be cut off.
fn is_text(start: &[u8]) -> bool {
    let mut chunks = start.utf8_chunks();
    let (Some(chunk), None) = (chunks.next(), chunks.next()) else { return false };
    let is_printable = |letter: char| !letter.is_control() || letter.is_ascii_whitespace();
    !chunk.valid().is_empty() && chunk.valid().chars().all(is_printable)
}

/// Where `part` begins.
pub(super) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
