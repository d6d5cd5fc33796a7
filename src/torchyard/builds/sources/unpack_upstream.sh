set -eu
for archive in files/*.tar.*; do
  case $archive in *.asc|*.orig-*|*.debian.tar.*) continue;; esac
  mkdir unpacked
  tar -x --no-same-owner --no-same-permissions -C unpacked -f "$archive"
  top='find unpacked -mindepth 1 -maxdepth 1'
  if [ "$($top | wc -l)" = 1 ] && [ -n "$($top -type d)" ]
  then $top -exec mv -T {} tree ';'; rmdir unpacked; else mv -T unpacked tree; fi
done
for archive in files/*.orig-*.tar.*; do
  case $archive in *.asc|*'*'*) continue;; esac
  name=${archive##*.orig-}; name=${name%.tar.*}
  rm -rf "tree/$name"; mkdir "tree/$name"
  tar -x --no-same-owner --no-same-permissions --strip-components=1 -C "tree/$name" -f "$archive"
done
