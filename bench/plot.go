package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-analyze/charts"
)

// plots writes a plot for each backend of a scenario that has several cases, and returns their
// names. Bounds are not drawn: next to their bars the others could not be distinguished.
func plots(dir string, sc scenario, r *Results) (names []string, err error) {
	for _, b := range backends {
		title := fmt.Sprintf("%s: %s, by %s", b.name, sc.metrics[0].title, sc.of)
		contenders, cells := r.grid(b.name, sc, false)
		if len(contenders) == 0 {
			continue
		}
		svg, err := plot(title, sc, contenders, cells)
		if err != nil {
			return nil, err
		}
		name := sc.name + "-" + b.name + ".svg"
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// plot draws the medians as bars: a group for each case, with a bar for each contender.
func plot(title string, sc scenario, contenders []string, cells [][]Row) ([]byte, error) {
	var data [][]float64
	for _, rows := range cells {
		var bars []float64
		for _, row := range rows {
			bars = append(bars, median(values(row.Rounds, sc.metrics[0].key)))
		}
		data = append(data, bars)
	}
	labels := make([]string, len(sc.cases))
	for i, n := range sc.cases {
		labels[i] = fmt.Sprint(n)
	}
	o := charts.NewBarChartOptionWithData(data)
	o.Title.Text = title
	o.Title.FontStyle.FontSize = 12
	o.Legend.SeriesNames = contenders
	o.Legend.Offset = charts.OffsetStr{Top: "26"}
	o.CategoryAxis.Labels = labels
	for i := range o.SeriesList {
		o.SeriesList[i].Label.Show = charts.Ptr(true)
		o.SeriesList[i].Label.ValueFormatter = digits
		o.SeriesList[i].Label.FontStyle.FontSize = 8
	}
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: 640, Height: 320})
	if err := p.BarChart(o); err != nil {
		return nil, err
	}
	return p.Bytes()
}

// grid has the results of the contenders of a backend in the cases of a scenario: a line for each
// contender, with a cell for each case. A cell may be empty.
func (r *Results) grid(backend string, sc scenario, bounds bool) (contenders []string, cells [][]Row) {
	at := map[string]int{}
	for _, row := range r.Rows {
		if row.Backend != backend || row.Scenario != sc.name || row.Bound && !bounds {
			continue
		}
		i, ok := at[row.Contender]
		if !ok {
			i = len(contenders)
			at[row.Contender] = i
			contenders, cells = append(contenders, row.Contender), append(cells, make([]Row, len(sc.cases)))
		}
		for j, n := range sc.cases {
			if n == row.Case {
				cells[i][j] = row
			}
		}
	}
	return contenders, cells
}
