// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Plot of bandwidth by message size for each provider and limit. As in the overview of SCIF, it
//! shows throughput against the transfer size in kilobytes on a logarithmic axis.

use std::path::Path;

use plotters::prelude::*;

use super::report::Report;

const SIZE: (u32, u32) = (900, 1120);

/// One curve: name, and points in kilobytes and GB/s.
type Curve = (String, Vec<(f64, f64)>);

fn curves(report: &Report<'_>, test: &str) -> Vec<Curve> {
    let mut out = Vec::new();
    for (at, subject) in report.subjects.iter().enumerate() {
        let mut sizes: Vec<usize> = report
            .rows
            .iter()
            .filter(|row| row.test == test && row.subject == at)
            .map(|row| row.size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let point = |size: usize| {
            let row = report.shown(at, test, size)?;
            let size = u32::try_from(size).ok()?;
            Some((f64::from(size) / 1024.0, row.spread.median / 1000.0))
        };
        let points: Vec<(f64, f64)> = sizes.into_iter().filter_map(point).collect();
        if points.len() > 1 {
            out.push((subject.label.clone(), points));
        }
    }
    out
}

fn colour(label: &str, at: usize) -> RGBColor {
    const OTHERS: [RGBColor; 5] = [
        RGBColor(44, 127, 184),
        RGBColor(35, 139, 69),
        RGBColor(142, 68, 173),
        RGBColor(204, 121, 11),
        RGBColor(52, 73, 94),
    ];
    match label {
        "scif" => RGBColor(192, 57, 43),
        "copy" => RGBColor(176, 146, 104),
        "copy2" => RGBColor(214, 196, 166),
        "process_vm" => RGBColor(127, 140, 141),
        "process_vm2" => RGBColor(178, 186, 187),
        _ => OTHERS.get(at % OTHERS.len()).copied().unwrap_or(BLACK),
    }
}

/// Draws the figure.
pub(crate) fn draw(report: &Report<'_>, path: &Path) -> Result<(), String> {
    let panels = [
        ("tagged_bw", "tagged messages, buffers reused"),
        ("tagged_touched", "tagged messages one by one, buffers touched"),
    ];
    let filled: Vec<(&str, Vec<Curve>)> = panels
        .iter()
        .map(|(test, title)| (*title, curves(report, test)))
        .filter(|(_, curves)| !curves.is_empty())
        .collect();
    if filled.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| e.to_string())?;
    for (area, (title, curves)) in root.split_evenly((filled.len(), 1)).iter().zip(&filled) {
        panel(area, title, curves).map_err(|e| e.to_string())?;
    }
    root.present().map_err(|e| e.to_string())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area<'_>,
    title: &str,
    curves: &[Curve],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>> {
    let points = || curves.iter().flat_map(|(_, points)| points.iter());
    let ends = |pick: fn(&(f64, f64)) -> f64| {
        points().map(pick).fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        })
    };
    let (low_x, high_x) = ends(|point| point.0);
    // A copy out of the first-level cache exceeds any transfer many times over and would flatten
    // all other curves.
    let providers = curves.iter().filter(|(label, _)| !label.starts_with("copy"));
    let most = providers.flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
    let high_y = if most > 0.0 { most * 1.3 } else { ends(|point| point.1).1 * 1.1 };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((low_x..high_x).log_scale(), 0.0..high_y)?;
    chart
        .configure_mesh()
        .x_desc("Transfer Size (KBytes)")
        .y_desc("Throughput (GB/sec)")
        .x_labels(4)
        .y_labels(8)
        .max_light_lines(2)
        .light_line_style(RGBColor(240, 240, 240))
        .x_label_formatter(&|x| format!("{}", (x * 1000.0).round() / 1000.0))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (at, (label, points)) in curves.iter().enumerate() {
        let colour = colour(label, at);
        let width = if label == "scif" { 3 } else { 2 };
        let line: Vec<(f64, f64)> =
            points.iter().copied().filter(|point| point.1 <= high_y).collect();
        if line.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(width)))?
            .label(label.as_str())
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(width))
            });
        chart.draw_series(
            line.into_iter().map(|point| Circle::new(point, width + 1, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 13))
        .draw()
}
