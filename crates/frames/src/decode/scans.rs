//! Completeness of JPEG scans (ITU-T T.81): whether every scan has data for all of its blocks.
//!
//! Decoders fill missing blocks with one colour, also where an end-of-image marker follows. Only Huffman codes are read here
//! (Annexes F.2.2 and G.2), no coefficients are kept.

/// Scans beyond this are not checked. Progressive pictures have about ten.
const MOST_SCANS: usize = 200;

/// Bits of a code that are looked up at once.
const LOOKUP: u32 = 8;

/// Whether every scan has data for all of its blocks. What is not understood counts as complete: the decoder judges that.
pub(super) fn are_complete(contents: &[u8]) -> bool {
    check(contents).unwrap_or(true)
}

/// `None` where the contents are not understood.
fn check(contents: &[u8]) -> Option<bool> {
    let mut tables: [[Option<Table>; 4]; 2] = Default::default();
    let (mut frame, mut restart_interval, mut scans) = (None, 0, 0);
    let mut rest = contents.get(2..)?;
    loop {
        let at = rest.iter().position(|&byte| byte == 0xFF)?;
        rest = &rest[at + 1..];
        let marker = *rest.first()?;
        match marker {
            0xD9 => return Some(true),
            0xFF => continue,
            0x00 | 0x01 | 0xD0..=0xD7 => {
                rest = &rest[1..];
                continue;
            }
            _ => {}
        }
        let length = usize::from(u16::from_be_bytes([*rest.get(1)?, *rest.get(2)?]));
        let segment = rest.get(3..1 + length)?;
        rest = &rest[1 + length..];
        match marker {
            0xC4 => read_tables(segment, &mut tables)?,
            0xDD => restart_interval = usize::from(u16::from_be_bytes([*segment.first()?, *segment.get(1)?])),
            0xC0..=0xC2 => frame = Some(Frame::read(segment, marker == 0xC2)?),
            0xDA => {
                scans += 1;
                if scans > MOST_SCANS {
                    return None;
                }
                let scan = Scan::read(segment, frame.as_mut()?, &tables)?;
                let mut bits = Bits { data: rest, buffer: 0, count: 0 };
                if scan.walk(frame.as_mut()?, restart_interval, &mut bits).is_none() {
                    return Some(false);
                }
                rest = bits.data;
            }
            _ => {}
        }
    }
}

struct Frame {
    progressive: bool,
    width: usize,
    height: usize,
    components: Vec<Component>,
}

struct Component {
    id: u8,
    horizontal: usize,
    vertical: usize,
    /// Blocks that hold pixels, across and down: those of a scan of this component alone.
    blocks: [usize; 2],
    /// Blocks across, with those that only complete a unit of several components.
    stride: usize,
    /// Of each block, which coefficients (bits, in zigzag order) are not zero. Empty unless progressive.
    nonzero: Vec<u64>,
}

impl Frame {
    fn read(segment: &[u8], progressive: bool) -> Option<Self> {
        let side = |at: usize| Some(usize::from(u16::from_be_bytes([*segment.get(at)?, *segment.get(at + 1)?])));
        let (height, width) = (side(1)?, side(3)?);
        let list = segment.get(6..)?.as_chunks::<3>().0.iter().take(usize::from(segment[5]));
        let mut components: Vec<_> = list
            .map(|&[id, factors, _]| Component {
                id,
                horizontal: usize::from(factors >> 4),
                vertical: usize::from(factors & 15),
                blocks: [0; 2],
                stride: 0,
                nonzero: Vec::new(),
            })
            .collect();
        if height == 0 || components.iter().any(|c| !(1..=4).contains(&c.horizontal) || !(1..=4).contains(&c.vertical))
        {
            return None;
        }
        let across = components.iter().map(|c| c.horizontal).max()?;
        let down = components.iter().map(|c| c.vertical).max()?;
        for c in &mut components {
            c.blocks = [(width * c.horizontal).div_ceil(8 * across), (height * c.vertical).div_ceil(8 * down)];
            c.stride = width.div_ceil(8 * across) * c.horizontal;
            if progressive {
                c.nonzero = vec![0; c.stride * height.div_ceil(8 * down) * c.vertical];
            }
        }
        Some(Self { progressive, width, height, components })
    }
}

/// A Huffman table.
struct Table {
    /// Length and symbol of the code that begins with these bits; length 0 if it is longer.
    lookup: Vec<(u8, u8)>,
    counts: [u8; 16],
    symbols: Vec<u8>,
}

impl Table {
    fn new(counts: [u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut lookup = vec![(0, 0); 1 << LOOKUP];
        let (mut code, mut index) = (0, 0);
        for (length, &count) in (1..).zip(&counts) {
            for _ in 0..count {
                if code >> length != 0 {
                    return None;
                }
                if length <= LOOKUP {
                    let first = (code << (LOOKUP - length)) as usize;
                    lookup[first..first + (1 << (LOOKUP - length))].fill((length as u8, symbols[index]));
                }
                code += 1_u32;
                index += 1;
            }
            code <<= 1;
        }
        Some(Self { lookup, counts, symbols: symbols.to_vec() })
    }
}

fn read_tables(mut segment: &[u8], tables: &mut [[Option<Table>; 4]; 2]) -> Option<()> {
    while let Some((&which, rest)) = segment.split_first() {
        let (counts, rest) = rest.split_first_chunk::<16>()?;
        let (symbols, rest) = rest.split_at_checked(counts.iter().map(|&count| usize::from(count)).sum())?;
        *tables.get_mut(usize::from(which >> 4))?.get_mut(usize::from(which & 15))? =
            Some(Table::new(*counts, symbols)?);
        segment = rest;
    }
    Some(())
}

/// Entropy-coded data, up to the next marker.
struct Bits<'a> {
    data: &'a [u8],
    buffer: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 48 {
            self.data = match *self.data {
                [0xFF, 0, ref rest @ ..] => rest,
                [0xFF, ..] | [] => return,
                [_, ref rest @ ..] => {
                    self.buffer = self.buffer << 8 | u64::from(self.data[0]);
                    self.count += 8;
                    self.data = rest;
                    continue;
                }
            };
            self.buffer = self.buffer << 8 | 0xFF;
            self.count += 8;
        }
    }

    /// The next bits, up to 16; `None` if there are no more.
    fn take(&mut self, bits: u32) -> Option<u32> {
        if self.count < bits {
            self.fill();
        }
        self.count = self.count.checked_sub(bits)?;
        Some((self.buffer >> self.count) as u32 & ((1 << bits) - 1))
    }

    fn symbol(&mut self, table: &Table) -> Option<u8> {
        if self.count < 16 {
            self.fill();
        }
        if self.count >= LOOKUP {
            let (length, symbol) = table.lookup[(self.buffer >> (self.count - LOOKUP)) as usize & ((1 << LOOKUP) - 1)];
            if length > 0 {
                self.count -= u32::from(length);
                return Some(symbol);
            }
        }
        let (mut code, mut first, mut index) = (0, 0, 0);
        for &count in &table.counts {
            code |= self.take(1)? as i32;
            let count = i32::from(count);
            if code - count < first {
                return table.symbols.get((index + code - first) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }

    /// Goes past a restart marker.
    fn restart(&mut self) -> Option<()> {
        (self.buffer, self.count) = (0, 0);
        let at = self.data.windows(2).position(|pair| pair[0] == 0xFF && pair[1] != 0 && pair[1] != 0xFF)?;
        let is_restart = (0xD0..=0xD7).contains(&self.data[at + 1]);
        self.data = &self.data[at + 2..];
        is_restart.then_some(())
    }
}

/// A scan: components with their tables, and which coefficients it brings.
struct Scan<'a> {
    components: Vec<(usize, Option<&'a Table>, Option<&'a Table>)>,
    /// First and last coefficient, in zigzag order.
    band: [u32; 2],
    /// Whether it brings one more bit of coefficients that earlier scans began.
    refines: bool,
}

impl<'a> Scan<'a> {
    fn read(header: &[u8], frame: &mut Frame, tables: &'a [[Option<Table>; 4]; 2]) -> Option<Self> {
        let count = usize::from(*header.first()?);
        let mut components = Vec::new();
        for &[id, selectors] in header.get(1..1 + 2 * count)?.as_chunks::<2>().0 {
            let index = frame.components.iter().position(|component| component.id == id)?;
            let table = |class: usize, number: u8| tables[class].get(usize::from(number)).map(Option::as_ref);
            components.push((index, table(0, selectors >> 4)?, table(1, selectors & 15)?));
        }
        let &[first, last, approximation] = header.get(1 + 2 * count..)?.first_chunk()?;
        let band = if frame.progressive { [first.into(), last.into()] } else { [0, 63] };
        let dc_alone = band == [0, 0];
        if frame.progressive && !dc_alone && (band[0] == 0 || band[0] > band[1] || band[1] > 63 || count != 1) {
            return None;
        }
        Some(Self { components, band, refines: frame.progressive && approximation >> 4 > 0 })
    }

    /// Reads all blocks; `None` if data is missing.
    fn walk(&self, frame: &mut Frame, restart_interval: usize, bits: &mut Bits) -> Option<()> {
        let most = |of: fn(&Component) -> usize| frame.components.iter().map(of).max().unwrap_or(1);
        let (across, down) = (most(|c| c.horizontal), most(|c| c.vertical));
        // A component in a scan of its own has only the blocks that its picture needs.
        let alone = self.components.len() == 1;
        let [columns, rows] = match self.components[..] {
            [(index, ..)] => frame.components[index].blocks,
            _ => [frame.width.div_ceil(8 * across), frame.height.div_ceil(8 * down)],
        };
        // Blocks that end with the one before them.
        let mut ended = 0;
        for unit in 0..columns * rows {
            if restart_interval > 0 && unit > 0 && unit.is_multiple_of(restart_interval) {
                bits.restart()?;
                ended = 0;
            }
            let (column, row) = (unit % columns, unit / columns);
            for &(index, dc, ac) in &self.components {
                let component = &mut frame.components[index];
                let [h, v] = if alone { [1, 1] } else { [component.horizontal, component.vertical] };
                for (y, x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                    if !frame.progressive {
                        sequential(bits, dc?, ac?)?;
                    } else if self.band[1] == 0 {
                        let bits_more = if self.refines { 1 } else { u32::from(bits.symbol(dc?)?) };
                        bits.take(bits_more)?;
                    } else {
                        let place = (row * v + y) * component.stride + column * h + x;
                        let nonzero = component.nonzero.get_mut(place)?;
                        if self.refines {
                            refine(bits, ac?, self.band, nonzero, &mut ended)?;
                        } else {
                            begin(bits, ac?, self.band, nonzero, &mut ended)?;
                        }
                    }
                }
            }
        }
        Some(())
    }
}

fn sequential(bits: &mut Bits, dc: &Table, ac: &Table) -> Option<()> {
    let size = bits.symbol(dc)?;
    bits.take(size.min(16).into())?;
    let mut k = 1;
    while k < 64 {
        let symbol = bits.symbol(ac)?;
        match (symbol >> 4, symbol & 15) {
            (15, 0) => k += 16,
            (_, 0) => break,
            (run, size) => {
                bits.take(size.into())?;
                k += 1 + u32::from(run);
            }
        }
    }
    Some(())
}

/// The first bits of a band of AC coefficients (Annex G.1.2.2).
fn begin(bits: &mut Bits, ac: &Table, [first, last]: [u32; 2], nonzero: &mut u64, ended: &mut u32) -> Option<()> {
    if *ended > 0 {
        *ended -= 1;
        return Some(());
    }
    let mut k = first;
    while k <= last {
        let symbol = bits.symbol(ac)?;
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += run;
            bits.take(size)?;
            *nonzero |= 1_u64.checked_shl(k).unwrap_or(0);
            k += 1;
        } else if run == 15 {
            k += 16;
        } else {
            *ended = (1 << run) - 1 + bits.take(run)?;
            break;
        }
    }
    Some(())
}

/// One more bit of a band of AC coefficients (Annex G.1.2.3).
fn refine(bits: &mut Bits, ac: &Table, [first, last]: [u32; 2], nonzero: &mut u64, ended: &mut u32) -> Option<()> {
    let mut k = first;
    if *ended == 0 {
        while k <= last {
            let symbol = bits.symbol(ac)?;
            let (mut run, size) = (u32::from(symbol >> 4), symbol & 15);
            if size == 0 && run < 15 {
                *ended = (1 << run) + bits.take(run)?;
                break;
            }
            if size > 0 {
                bits.take(1)?; // the sign
            }
            while k <= last {
                if *nonzero >> k & 1 == 1 {
                    bits.take(1)?;
                } else if run == 0 {
                    break;
                } else {
                    run -= 1;
                }
                k += 1;
            }
            if size > 0 && k <= last {
                *nonzero |= 1 << k;
            }
            k += 1;
        }
    }
    if *ended > 0 {
        let rest = (k..=last).filter(|&k| *nonzero >> k & 1 == 1).count();
        (0..rest).try_for_each(|_| bits.take(1).map(drop))?;
        *ended -= 1;
    }
    Some(())
}
